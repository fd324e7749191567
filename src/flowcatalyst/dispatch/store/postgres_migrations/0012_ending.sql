-- Jobs are ended by their keys. Where a statement also says that they are not finished, the planner may choose an index of the
-- unfinished ones, and read all of it: with plans made while a store is small, what expired and what was cancelled cost
-- more the more jobs waited.

-- Finishes jobs without a delivery; how many were not before. Their lanes and they are locked by the caller, and none is leased.
CREATE OR REPLACE FUNCTION end_jobs(q integer, numbers bigint[], new_status text, wall double precision) RETURNS integer
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_material = off
SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
DECLARE
  to_settle bigint[];
  fewer bigint;
  fewer_delayed bigint;
  ended integer;
BEGIN
  WITH found AS MATERIALIZED (
    SELECT l.id AS lane, m.ctid AS at,
      l.owner IS NOT NULL AND l.delayed > 0 AND m.given_back = l.epoch AND m.visible_at IS NOT NULL AS was_delayed
    FROM unnest(numbers) AS n (number)
      CROSS JOIN LATERAL (SELECT k.place, k.lane FROM job_states AS k WHERE k.number = n.number OFFSET 0) AS s
      CROSS JOIN LATERAL (SELECT k.* FROM lanes AS k WHERE k.id = s.lane OFFSET 0) AS l
      CROSS JOIN LATERAL (
        SELECT k.ctid, k.given_back, k.visible_at FROM messages AS k WHERE k.lane = s.lane AND k.seq = s.place OFFSET 0) AS m),
  gone AS (DELETE FROM messages AS m WHERE m.ctid = ANY (ARRAY(SELECT f.at FROM found AS f))),
  by_lane AS (
    SELECT f.lane, count(*) AS messages, count(*) FILTER (WHERE f.was_delayed) AS delayed FROM found AS f GROUP BY f.lane),
  changed AS (
    UPDATE lanes AS l SET messages = l.messages - b.messages, delayed = l.delayed - b.delayed
    FROM by_lane AS b WHERE l.id = b.lane
    RETURNING l.id, b.messages, b.delayed)
  SELECT array_agg(c.id), coalesce(sum(c.messages), 0), coalesce(sum(c.delayed), 0)
  INTO to_settle, fewer, fewer_delayed FROM changed AS c;
  WITH unfinished AS MATERIALIZED (
    SELECT s.at FROM unnest(numbers) AS n (number)
      CROSS JOIN LATERAL (
        SELECT k.ctid AS at, k.finished_at FROM job_states AS k WHERE k.number = n.number OFFSET 0) AS s
    WHERE s.finished_at IS NULL)
  UPDATE job_states AS s SET status = new_status, finished_at = wall, next_attempt_at = NULL, scheduled_for = NULL, lane = NULL
  FROM unfinished AS u WHERE s.ctid = u.at;
  GET DIAGNOSTICS ended = ROW_COUNT;
  PERFORM count_up(q, -fewer, -fewer_delayed);
  IF to_settle IS NOT NULL THEN
    PERFORM settle_lanes(to_settle);
  END IF;
  RETURN ended;
END $$;

-- Ends up to so many jobs whose time is over, but for those that a router has in hand or that somebody changes; how many.
CREATE OR REPLACE FUNCTION expire_jobs(q integer, wall double precision, most integer) RETURNS integer LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off SET enable_material = off
SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
DECLARE
  over bigint[];
  locked bigint[];
BEGIN
  over := ARRAY(
    SELECT s.number FROM job_states AS s
    WHERE s.expires_at <= wall AND s.finished_at IS NULL AND NOT is_in_hand(s.lane, s.place)
    ORDER BY s.expires_at LIMIT most);
  IF cardinality(over) = 0 THEN
    RETURN 0;
  END IF;
  locked := ARRAY(
    SELECT l.id FROM lanes AS l WHERE l.id = ANY (ARRAY(
      SELECT s.lane FROM job_states AS s WHERE s.number = ANY (over) AND s.lane IS NOT NULL)) FOR UPDATE SKIP LOCKED);
  over := ARRAY(
    SELECT s.number FROM unnest(over) AS o (number)
      CROSS JOIN LATERAL (
        SELECT k.number, k.finished_at, k.lane, k.place FROM job_states AS k WHERE k.number = o.number OFFSET 0
        FOR UPDATE SKIP LOCKED) AS s
    WHERE s.finished_at IS NULL AND (s.lane IS NULL OR s.lane = ANY (locked)) AND NOT is_in_hand(s.lane, s.place));
  RETURN end_jobs(q, over, 'EXPIRED', wall);
END $$;
