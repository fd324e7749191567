-- What a store holds is known without looking: triggers count, so that no statement can forget to.
--
-- In the rows that count messages, so that a transaction locks one row for all it counts, after the lanes that it locks.

ALTER TABLE counts ADD COLUMN scheduled bigint NOT NULL DEFAULT 0;  -- jobs whose time has not come
ALTER TABLE counts ADD COLUMN parked bigint NOT NULL DEFAULT 0;     -- jobs in ERROR without a next attempt
ALTER TABLE counts ADD COLUMN groups bigint NOT NULL DEFAULT 0;     -- with jobs in order
ALTER TABLE counts ADD COLUMN blocked bigint NOT NULL DEFAULT 0;    -- of these
ALTER TABLE counts ADD COLUMN sizes bigint[] NOT NULL DEFAULT '{0,0,0,0,0,0}';  -- of these, with at most 1, 10, ... 100,000 jobs

CREATE FUNCTION number_of_jobs() RETURNS integer LANGUAGE sql STABLE
SET search_path FROM CURRENT AS $$ SELECT id FROM queues WHERE name = 'dispatch jobs' $$;

-- A group as a statement found it (-1) or left it (1).
CREATE TYPE group_seen AS (messages bigint, is_blocked boolean, sign integer);

CREATE FUNCTION count_groups() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
  q integer := number_of_jobs();
  seen group_seen[] := '{}';
  more record;
BEGIN
  IF TG_OP <> 'DELETE' THEN
    seen := ARRAY(
      SELECT (l.messages, l.blocked_at IS NOT NULL, 1)::group_seen FROM new_lanes AS l
      WHERE l.name IS NOT NULL AND l.messages > 0 AND l.queue = q);
  END IF;
  IF TG_OP <> 'INSERT' THEN
    seen := seen || ARRAY(
      SELECT (l.messages, l.blocked_at IS NOT NULL, -1)::group_seen FROM old_lanes AS l
      WHERE l.name IS NOT NULL AND l.messages > 0 AND l.queue = q);
  END IF;
  IF cardinality(seen) > 0 THEN
    SELECT sum(s.sign) AS groups, sum(s.sign * s.is_blocked::integer) AS blocked, ARRAY[
      sum(s.sign * (s.messages <= 1)::integer), sum(s.sign * (s.messages <= 10)::integer),
      sum(s.sign * (s.messages <= 100)::integer), sum(s.sign * (s.messages <= 1000)::integer),
      sum(s.sign * (s.messages <= 10000)::integer), sum(s.sign * (s.messages <= 100000)::integer)] AS sizes
    INTO more FROM unnest(seen) AS s;
    IF more.groups <> 0 OR more.blocked <> 0 OR more.sizes <> '{0,0,0,0,0,0}' THEN
      UPDATE counts AS c SET groups = c.groups + more.groups, blocked = c.blocked + more.blocked,
        sizes = ARRAY(SELECT a + b FROM unnest(c.sizes, more.sizes) WITH ORDINALITY AS s (a, b, n) ORDER BY n)
      WHERE c.queue = q AND c.part = pg_backend_pid() % 64;
    END IF;
  END IF;
  RETURN NULL;
END $$;

CREATE TRIGGER groups_come AFTER INSERT ON lanes REFERENCING NEW TABLE AS new_lanes
  FOR EACH STATEMENT EXECUTE FUNCTION count_groups();
CREATE TRIGGER groups_go AFTER DELETE ON lanes REFERENCING OLD TABLE AS old_lanes
  FOR EACH STATEMENT EXECUTE FUNCTION count_groups();
CREATE TRIGGER groups_change AFTER UPDATE ON lanes REFERENCING NEW TABLE AS new_lanes OLD TABLE AS old_lanes
  FOR EACH STATEMENT EXECUTE FUNCTION count_groups();

CREATE FUNCTION count_jobs() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
  more_scheduled bigint;
  more_parked bigint;
  before record;
BEGIN
  SELECT count(s.scheduled_for), count(*) FILTER (WHERE s.status = 'ERROR' AND s.next_attempt_at IS NULL)
  INTO more_scheduled, more_parked FROM new_states AS s;
  IF TG_OP = 'UPDATE' THEN
    SELECT count(s.scheduled_for) AS scheduled,
      count(*) FILTER (WHERE s.status = 'ERROR' AND s.next_attempt_at IS NULL) AS parked
    INTO before FROM old_states AS s;
    more_scheduled := more_scheduled - before.scheduled;
    more_parked := more_parked - before.parked;
  END IF;
  IF more_scheduled <> 0 OR more_parked <> 0 THEN
    UPDATE counts AS c SET scheduled = c.scheduled + more_scheduled, parked = c.parked + more_parked
    WHERE c.queue = number_of_jobs() AND c.part = pg_backend_pid() % 64;
  END IF;
  RETURN NULL;
END $$;

CREATE TRIGGER jobs_come AFTER INSERT ON job_states REFERENCING NEW TABLE AS new_states
  FOR EACH STATEMENT EXECUTE FUNCTION count_jobs();
CREATE TRIGGER jobs_change AFTER UPDATE ON job_states REFERENCING NEW TABLE AS new_states OLD TABLE AS old_states
  FOR EACH STATEMENT EXECUTE FUNCTION count_jobs();
