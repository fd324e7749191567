-- Delays go by a clock of the store's own, which never goes back: a nack made while the server's clock was a year ahead would
-- hide its group for that year otherwise. Set forward it ends delays early, which harms nobody. docs/adr/0013 tells why.
--
-- It is the server's clock and what it was set back by since. Owners write down now and then what it was.

-- One function, so that a test can set the clock.
CREATE FUNCTION machine_time() RETURNS timestamptz LANGUAGE sql AS 'SELECT clock_timestamp()';

CREATE TABLE clock (
  is_only boolean PRIMARY KEY DEFAULT true CHECK (is_only),
  ahead_s double precision NOT NULL  -- of the server's clock
);
INSERT INTO clock (ahead_s) VALUES (0);

-- Apart, since it is written again and again.
CREATE TABLE clock_seen (
  is_only boolean PRIMARY KEY DEFAULT true CHECK (is_only),
  at timestamptz NOT NULL
) WITH (fillfactor = 10);
INSERT INTO clock_seen (at) VALUES (clock_timestamp());

-- By which delays go.
CREATE OR REPLACE FUNCTION server_time() RETURNS timestamptz LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN machine_time() + make_interval(secs => coalesce((SELECT c.ahead_s FROM clock AS c WHERE c.is_only), 0));
END $$;

-- Goes on from where the clock was seen last, should the server's have been set back since.
CREATE FUNCTION keep_time() RETURNS void LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
  moment timestamptz := server_time();
  seen timestamptz := (SELECT s.at FROM clock_seen AS s WHERE s.is_only);
BEGIN
  IF moment > seen + interval '1 second' THEN
    UPDATE clock_seen AS s SET at = moment WHERE s.is_only AND s.at < moment;
  ELSIF moment < seen - interval '1 second' THEN
    PERFORM 1 FROM clock AS c WHERE c.is_only FOR UPDATE;
    moment := server_time();  -- again: somebody may have been faster
    IF moment < seen THEN
      UPDATE clock AS c SET ahead_s = c.ahead_s + extract(epoch FROM seen - moment) WHERE c.is_only;
    END IF;
  END IF;
END $$;

-- Renews an owner; all owners with their beats. It is gone if it is not among them.
CREATE OR REPLACE FUNCTION renew(owner_id bigint, is_waiting boolean) RETURNS TABLE (owner bigint, beats bigint)
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
  UPDATE owners AS o SET beat = o.beat + 1, beat_at = now(), waits = is_waiting WHERE o.id = owner_id;
  PERFORM keep_time();
  RETURN QUERY SELECT o.id, o.beat FROM owners AS o ORDER BY o.id;
END $$;

-- Renews an owner that takes part. Owners and divisions as they were at one moment: each owner once for each thing.
CREATE OR REPLACE FUNCTION renew_member(owner_id bigint, is_waiting boolean, slots bigint, permits bigint)
RETURNS TABLE (
  owner bigint, beats bigint, thing text, kept bigint, in_force bigint, in_force_members bigint[], newest bigint,
  newest_members bigint[])
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
  UPDATE owners AS o SET beat = o.beat + 1, beat_at = now(), waits = is_waiting, slots_kept = slots, permits_kept = permits
  WHERE o.id = owner_id;
  PERFORM keep_time();
  RETURN QUERY
    SELECT o.id, o.beat, d.thing, CASE d.thing WHEN 'slots' THEN o.slots_kept ELSE o.permits_kept END,
      d.in_force, d.in_force_members, d.newest, d.newest_members
    FROM owners AS o CROSS JOIN divisions AS d ORDER BY o.id;
END $$;

-- Two functions went by the server's own clock until now. Else they stay as they are: what is due is not counted as delayed,
-- and deduplication ids count for five minutes.
DO $$
BEGIN
  EXECUTE replace(
    pg_get_functiondef('depth(integer)'::regprocedure), 'clock_timestamp()', 'server_time()');
  EXECUTE replace(
    pg_get_functiondef('publish(integer,text[],text[],text[],text[],bigint[])'::regprocedure), 'clock_timestamp()',
    'server_time()');
END $$;
