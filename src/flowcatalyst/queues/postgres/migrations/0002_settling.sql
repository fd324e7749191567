-- What is done to lanes, as functions: each is one statement of its caller, so that no client that is paused or cut off
-- leaves a transaction with locked lanes behind. Inside, every statement sees what was committed before it began (READ
-- COMMITTED): lanes are locked by one statement, and looked at by the next.
--
-- Whoever waits for locks of several lanes does so in the order of (name, id).
--
-- Plans are made once, and reach each row by its key: one that was made when a table was empty, or that believes an old
-- estimate, must not lead through all of it later. So other ways are switched off, or barred by LATERAL with OFFSET 0.

CREATE FUNCTION count_up(q integer, more_messages bigint, more_delayed bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF more_messages <> 0 OR more_delayed <> 0 THEN
    UPDATE counts SET messages = messages + more_messages, delayed = delayed + more_delayed
    WHERE queue = q AND part = pg_backend_pid() % 64;
  END IF;
END $$;

-- The number of a queue; it is made if there is none of that name.
CREATE FUNCTION open_queue(queue_name text) RETURNS integer LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
  found_id integer;
BEGIN
  SELECT id INTO found_id FROM queues WHERE name = queue_name;
  IF found_id IS NULL THEN
    INSERT INTO queues (name) VALUES (queue_name) ON CONFLICT DO NOTHING;
    SELECT id INTO found_id FROM queues WHERE name = queue_name;
    INSERT INTO counts (queue, part) SELECT found_id, part FROM generate_series(0, 63) AS part ON CONFLICT DO NOTHING;
  END IF;
  RETURN found_id;
END $$;

-- Tell those who wait that a queue has something for them.
CREATE FUNCTION wake(q integer) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT 1 FROM owners WHERE waits) THEN
    PERFORM pg_notify('flowcatalyst_' || current_schema(), q::text);
  END IF;
END $$;

-- Locks lanes; the ids of those that somebody else keeps locked. An application that publishes in a long transaction of its
-- own must not hold up what is settled in other groups. The wait is shorter than what it takes to look for deadlocks.
CREATE FUNCTION lock_lanes(ids bigint[]) RETURNS bigint[] LANGUAGE plpgsql SET lock_timeout = '500ms' AS $$
#variable_conflict use_column
DECLARE
  got bigint[];
BEGIN
  BEGIN
    PERFORM 1 FROM lanes AS l WHERE l.id = ANY (ids) ORDER BY l.name, l.id FOR UPDATE;
    RETURN '{}';
  EXCEPTION WHEN lock_not_available THEN
    got := ARRAY(SELECT l.id FROM lanes AS l WHERE l.id = ANY (ids) FOR UPDATE SKIP LOCKED);
    RETURN ARRAY(
      SELECT l.id FROM (SELECT unnest(ids) AS id EXCEPT SELECT unnest(got)) AS m JOIN lanes AS l ON l.id = m.id);
  END;
END $$;

-- Lanes that the caller has locked and of which no message is leased become ready or delayed, in the order of the array,
-- and empty ones go. What was given back for longer still locks its lane.
CREATE FUNCTION settle_lanes(ids bigint[]) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  moment timestamptz := clock_timestamp();
  changed record;
BEGIN
  DELETE FROM lanes AS l WHERE l.id = ANY (ids) AND l.leased = 0
    AND NOT EXISTS (SELECT 1 FROM messages AS m WHERE m.lane = l.id AND m.seq >= l.head);
  FOR changed IN
    WITH free AS (
      SELECT l.id, l.owner, l.due, l.turn, l.delayed, first.seq, first.pool, CASE WHEN l.delayed > 0 THEN (
          SELECT max(m.visible_at) FROM messages AS m
          WHERE m.lane = l.id AND m.seq BETWEEN l.head AND l.leased_to AND m.visible_at > moment) END AS until
      FROM unnest(ids) WITH ORDINALITY AS asked (id, place) JOIN lanes AS l ON l.id = asked.id
        CROSS JOIN LATERAL (
          SELECT m.seq, m.pool FROM messages AS m WHERE m.lane = l.id AND m.seq >= l.head ORDER BY m.seq LIMIT 1) AS first
      WHERE l.leased = 0
      ORDER BY asked.place),
    turned AS (
      SELECT free.*, CASE WHEN owner IS NULL AND due IS NULL THEN turn ELSE nextval('numbers') END AS new_turn FROM free),
    settled AS (
      UPDATE lanes AS l SET owner = NULL, claim = NULL, turn = t.new_turn, head = t.seq, pool = t.pool, due = t.until,
        delayed = CASE WHEN t.until IS NULL THEN 0 ELSE l.delayed END
      FROM turned AS t WHERE l.id = t.id
      RETURNING l.queue, CASE WHEN t.until IS NULL THEN -t.delayed ELSE 0 END AS more_delayed)
    SELECT s.queue, sum(s.more_delayed) AS more_delayed FROM settled AS s GROUP BY s.queue
  LOOP
    PERFORM count_up(changed.queue, 0, changed.more_delayed::bigint);
  END LOOP;
END $$;

-- Delete messages. The positions of those that are still there, since their receipts are stale, and of those whose lanes
-- somebody else keeps locked.
CREATE FUNCTION ack(lane_ids bigint[], seqs bigint[], epochs bigint[], OUT stale integer[], OUT busy integer[])
LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off SET enable_material = off
SET enable_hashjoin = off SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
DECLARE
  freed bigint[] := '{}';
  asked integer := cardinality(seqs);
  deleted bigint := 0;
  touched record;
  busy_lanes bigint[] := lock_lanes(lane_ids);
BEGIN
  stale := '{}';
  busy := '{}';
  FOR touched IN
    WITH found AS MATERIALIZED (  -- each by its key: joined otherwise, all messages of a lane would be read
      SELECT m.place, a.lane, l.leased > 0 AND a.seq <= l.leased_to AND m.given_back <> l.epoch AS was_leased,
        l.delayed > 0 AND m.given_back = l.epoch AND m.visible_at IS NOT NULL AS was_delayed
      FROM (SELECT DISTINCT r.lane, r.seq, r.epoch FROM unnest(lane_ids, seqs, epochs) AS r (lane, seq, epoch)) AS a
        JOIN lanes AS l ON l.id = a.lane AND l.epoch = a.epoch
        CROSS JOIN LATERAL (
          SELECT k.ctid AS place, k.given_back, k.visible_at FROM messages AS k
          WHERE k.lane = a.lane AND k.seq = a.seq OFFSET 0) AS m
      WHERE a.lane <> ALL (busy_lanes)),
    gone AS (DELETE FROM messages AS m WHERE m.ctid = ANY (ARRAY(SELECT f.place FROM found AS f))),
    by_lane AS (
      SELECT f.lane, count(*) AS messages, count(*) FILTER (WHERE f.was_leased) AS leased,
        count(*) FILTER (WHERE f.was_delayed) AS delayed
      FROM found AS f GROUP BY f.lane),
    changed AS (
      UPDATE lanes AS l SET messages = l.messages - b.messages, leased = l.leased - b.leased, delayed = l.delayed - b.delayed
      FROM by_lane AS b WHERE l.id = b.lane
      RETURNING l.id, l.queue, l.leased, b.messages, b.delayed)
    SELECT c.queue, sum(c.messages) AS messages, sum(c.delayed) AS delayed,
      array_agg(c.id) FILTER (WHERE c.leased = 0) AS free
    FROM changed AS c GROUP BY c.queue
  LOOP
    PERFORM count_up(touched.queue, -touched.messages::bigint, -touched.delayed::bigint);
    deleted := deleted + touched.messages;
    freed := freed || touched.free;
  END LOOP;
  IF cardinality(freed) > 0 THEN
    PERFORM settle_lanes(freed);
  END IF;
  IF deleted < asked THEN
    busy := ARRAY(
      SELECT a.place FROM unnest(lane_ids) WITH ORDINALITY AS a (lane, place) WHERE a.lane = ANY (busy_lanes));
    stale := ARRAY(
      SELECT a.place FROM unnest(lane_ids, seqs) WITH ORDINALITY AS a (lane, seq, place)
        CROSS JOIN LATERAL (SELECT 1 FROM messages AS k WHERE k.lane = a.lane AND k.seq = a.seq OFFSET 0) AS m
      WHERE a.lane <> ALL (busy_lanes));
  END IF;
END $$;

-- Show messages after a delay and remember how often each has failed. The positions of those that were held, and of those
-- whose lanes somebody else keeps locked.
-- With `unlock` each gets a lane of its own and holds up nobody but itself.
CREATE FUNCTION nack(
  lane_ids bigint[], seqs bigint[], epochs bigint[], failed integer[], delay_s double precision, unlock boolean,
  OUT held integer[], OUT busy integer[])
LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off SET enable_material = off
SET enable_hashjoin = off SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
DECLARE
  shown_at timestamptz := CASE WHEN delay_s > 0 THEN clock_timestamp() + make_interval(secs => delay_s) END;
  delays integer := CASE WHEN delay_s > 0 AND NOT unlock THEN 1 ELSE 0 END;
  free_lanes bigint[];
  busy_lanes bigint[] := lock_lanes(lane_ids);
  q integer;  -- of all of them
  one record;
  new_lane bigint;
BEGIN
  busy := ARRAY(
    SELECT a.place FROM unnest(lane_ids) WITH ORDINALITY AS a (lane, place) WHERE a.lane = ANY (busy_lanes));
  WITH found AS MATERIALIZED (
    SELECT m.ctid, a.lane, a.failures, a.place, l.epoch, l.leased > 0 AND a.seq <= l.leased_to AS was_leased
    FROM unnest(lane_ids, seqs, epochs, failed) WITH ORDINALITY AS a (lane, seq, epoch, failures, place)
      JOIN lanes AS l ON l.id = a.lane AND l.epoch = a.epoch
      CROSS JOIN LATERAL (
        SELECT k.ctid FROM messages AS k
        WHERE k.lane = a.lane AND k.seq = a.seq AND k.given_back <> l.epoch OFFSET 0) AS m
    WHERE a.lane <> ALL (busy_lanes)),
  back AS (
    UPDATE messages AS m SET visible_at = shown_at, given_back = f.epoch, receives = m.receives + 1, failures = f.failures
    FROM found AS f WHERE m.ctid = f.ctid
    RETURNING f.lane, f.place, f.was_leased),
  by_lane AS (
    SELECT b.lane, count(*) AS messages, count(*) FILTER (WHERE b.was_leased) AS leased, min(b.place) AS place
    FROM back AS b GROUP BY b.lane),
  changed AS (
    UPDATE lanes AS l SET leased = l.leased - b.leased, delayed = l.delayed + delays * b.messages
    FROM by_lane AS b WHERE l.id = b.lane
    RETURNING l.id, l.queue, l.leased, b.place)
  SELECT (SELECT array_agg(b.place) FROM back AS b), (SELECT min(c.queue) FROM changed AS c),
    (SELECT array_agg(c.id ORDER BY c.place) FROM changed AS c WHERE c.leased = 0)
  INTO held, q, free_lanes;
  PERFORM count_up(q, 0, delays * coalesce(cardinality(held), 0));
  IF unlock THEN
    FOR one IN
      SELECT l.id, l.queue, l.grp, m.seq, m.pool FROM unnest(held) AS h (place)
        JOIN lanes AS l ON l.id = lane_ids[h.place]
        CROSS JOIN LATERAL (
          SELECT k.seq, k.pool FROM messages AS k WHERE k.lane = l.id AND k.seq = seqs[h.place] OFFSET 0) AS m
    LOOP
      INSERT INTO lanes (id, queue, grp, pool, turn, messages, head, leased_to, due, delayed)
      SELECT n, one.queue, one.grp, one.pool, n, 1, one.seq, one.seq, shown_at, (shown_at IS NOT NULL)::integer
      FROM nextval('numbers') AS n RETURNING id INTO new_lane;
      UPDATE messages AS m SET lane = new_lane, given_back = 0 WHERE m.lane = one.id AND m.seq = one.seq;
      UPDATE lanes AS l SET messages = l.messages - 1 WHERE l.id = one.id;
      PERFORM count_up(q, 0, (shown_at IS NOT NULL)::integer);
    END LOOP;
  END IF;
  IF free_lanes IS NOT NULL THEN
    PERFORM settle_lanes(free_lanes);
  END IF;
  held := coalesce(held, '{}');
END $$;
