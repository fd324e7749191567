-- How jobs are handed out and settled: the functions of lanes, and what follows for the jobs, in one statement.

-- Whether a router has the job in hand whose message is there: it belongs to the lease of its lane that goes on.
CREATE FUNCTION is_in_hand(in_lane bigint, place bigint) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN in_lane IS NOT NULL AND EXISTS (
    SELECT 1 FROM lanes AS l JOIN messages AS m ON m.lane = l.id AND m.seq = place
    WHERE l.id = in_lane AND l.owner IS NOT NULL AND place <= l.leased_to AND m.given_back <> l.epoch);
END $$;

-- Finishes jobs without a delivery; how many were not before. Their lanes are locked by the caller, and none is leased.
CREATE FUNCTION end_jobs(q integer, numbers bigint[], new_status text, wall double precision) RETURNS integer LANGUAGE plpgsql
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
  UPDATE job_states AS s SET status = new_status, finished_at = wall, next_attempt_at = NULL, scheduled_for = NULL, lane = NULL
  FROM unnest(numbers) AS n (number) WHERE s.number = n.number AND s.finished_at IS NULL;
  GET DIAGNOSTICS ended = ROW_COUNT;
  PERFORM count_up(q, -fewer, -fewer_delayed);
  IF to_settle IS NOT NULL THEN
    PERFORM settle_lanes(to_settle);
  END IF;
  RETURN ended;
END $$;

-- Ends up to so many jobs whose time is over, but for those that a router has in hand or that somebody changes; how many.
CREATE FUNCTION expire_jobs(q integer, wall double precision, most integer) RETURNS integer LANGUAGE plpgsql
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
    SELECT s.number FROM job_states AS s
    WHERE s.number = ANY (over) AND s.finished_at IS NULL AND (s.lane IS NULL OR s.lane = ANY (locked))
      AND NOT is_in_hand(s.lane, s.place)
    FOR UPDATE SKIP LOCKED);
  RETURN end_jobs(q, over, 'EXPIRED', wall);
END $$;

-- `look`, after those jobs were let in whose time has come, and those ended whose time is over.
CREATE FUNCTION look_for_jobs(
  q integer, after text, most integer, wall double precision,
  OUT pools text[], OUT turns bigint[], OUT due_in_s double precision)
LANGUAGE plpgsql SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
  next_at double precision := enter_due_jobs(q, wall, 500);
  next_over double precision;
BEGIN
  PERFORM expire_jobs(q, wall, 500);
  SELECT min(s.expires_at) INTO next_over FROM job_states AS s
  WHERE s.expires_at IS NOT NULL AND s.finished_at IS NULL AND s.expires_at > wall;
  SELECT l.pools, l.turns, least(l.due_in_s, next_at - wall, next_over - wall) INTO pools, turns, due_in_s
  FROM look(q, after, most) AS l;
END $$;

-- `take`, with what is to be sent. What expired meanwhile is ended instead.
CREATE FUNCTION take_jobs(
  q integer, owner_id bigint, claim_no bigint, limited_pools text[], limits integer[], share integer, wall double precision)
RETURNS TABLE (
  lane bigint, seq bigint, epoch bigint, receives integer, failures integer, grp text, attempts integer, id text,
  target text, pool text, message_group text, mode text, content_type text, headers text, timeout_s double precision,
  max_retries integer, delays double precision[], due_at double precision, expires_at double precision, payload bytea)
LANGUAGE plpgsql SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_material = off SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
DECLARE
  lane_ids bigint[];
  seqs bigint[];
  epochs bigint[];
  all_receives integer[];
  all_failures integer[];
  groups text[];
BEGIN
  SELECT array_agg(t.lane), array_agg(t.seq), array_agg(t.epoch), array_agg(t.receives), array_agg(t.failures), array_agg(t.grp)
  INTO lane_ids, seqs, epochs, all_receives, all_failures, groups
  FROM take(q, owner_id, claim_no, limited_pools, limits, share) AS t;
  RETURN QUERY
    SELECT t.lane, t.seq, t.epoch, t.receives, t.failures, t.grp, s.attempts, j.id, j.target, j.pool, j.grp, j.mode,
      j.content_type, j.headers, j.timeout_s, j.max_retries, j.delays, greatest(j.created_at, j.scheduled_for),
      j.expires_at, j.payload
    FROM unnest(lane_ids, seqs, epochs, all_receives, all_failures, groups) WITH ORDINALITY
        AS t (lane, seq, epoch, receives, failures, grp, position)
      CROSS JOIN LATERAL (SELECT k.* FROM jobs AS k WHERE k.number = number_at(t.seq) OFFSET 0) AS j
      CROSS JOIN LATERAL (SELECT k.attempts FROM job_states AS k WHERE k.number = number_at(t.seq) OFFSET 0) AS s
    WHERE coalesce(j.expires_at > wall, true)
    ORDER BY t.position;
  IF EXISTS (SELECT 1 FROM job_states AS s WHERE s.expires_at <= wall AND s.finished_at IS NULL) THEN
    PERFORM end_taken(lane_ids, seqs, epochs, wall);
  END IF;
END $$;

-- Ends those of the jobs that were just taken whose time is over.
CREATE FUNCTION end_taken(lane_ids bigint[], seqs bigint[], epochs bigint[], wall double precision) RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  deleted bigint[];
BEGIN
  SELECT a.deleted INTO deleted FROM (
    SELECT array_agg(t.lane) AS lanes, array_agg(t.seq) AS seqs, array_agg(t.epoch) AS epochs
    FROM unnest(lane_ids, seqs, epochs) AS t (lane, seq, epoch)
      CROSS JOIN LATERAL (SELECT k.expires_at FROM job_states AS k WHERE k.number = number_at(t.seq) OFFSET 0) AS s
    WHERE s.expires_at <= wall) AS over CROSS JOIN LATERAL ack(over.lanes, over.seqs, over.epochs) AS a
  WHERE over.seqs IS NOT NULL;
  UPDATE job_states AS s SET status = 'EXPIRED', finished_at = wall, next_attempt_at = NULL, lane = NULL
  FROM unnest(deleted) AS d (seq) WHERE s.number = number_at(d.seq);
END $$;

-- Delivered: their messages go, and they are COMPLETED with their attempts, which are NULL where there was none. The
-- positions of those whose receipts are stale, and of those whose lanes somebody else keeps locked.
CREATE FUNCTION ack_jobs(
  lane_ids bigint[], seqs bigint[], epochs bigint[], wall double precision, began double precision[],
  durations double precision[], statuses integer[], errors text[], counting boolean[], details text[], excerpts text[],
  OUT stale integer[], OUT busy integer[])
LANGUAGE plpgsql SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_material = off SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
DECLARE
  deleted bigint[];
  are_all boolean;
BEGIN
  SELECT a.busy, a.deleted INTO busy, deleted FROM ack(lane_ids, seqs, epochs) AS a;
  are_all := cardinality(deleted) = cardinality(seqs);
  stale := '{}';
  WITH given AS MATERIALIZED (
    SELECT s.ctid AS at, g.* FROM unnest(seqs, began, durations, statuses, errors, counting, details, excerpts)
        AS g (seq, began_at, duration_s, status, error, counts, detail, excerpt)
      CROSS JOIN LATERAL (SELECT k.ctid FROM job_states AS k WHERE k.number = number_at(g.seq) OFFSET 0) AS s
    WHERE are_all OR g.seq = ANY (deleted)),
  done AS (
    UPDATE job_states AS s SET status = 'COMPLETED', finished_at = wall, next_attempt_at = NULL, last_error = '', lane = NULL,
      attempts = s.attempts + (g.began_at IS NOT NULL)::integer
    FROM given AS g WHERE s.ctid = g.at
    RETURNING s.number, s.attempts, g.*)
  INSERT INTO job_attempts (job, attempt, began_at, duration_s, status, error, counts, detail, excerpt)
  SELECT d.number, d.attempts, d.began_at, d.duration_s, d.status, d.error, d.counts, d.detail, d.excerpt
  FROM done AS d WHERE d.began_at IS NOT NULL;
  IF NOT are_all THEN  -- what was acked before is well; what is in another state was settled by somebody else
    stale := ARRAY(
      SELECT a.place::integer FROM unnest(seqs) WITH ORDINALITY AS a (seq, place)
        CROSS JOIN LATERAL (SELECT k.status FROM job_states AS k WHERE k.number = number_at(a.seq) OFFSET 0) AS s
      WHERE s.status <> 'COMPLETED' AND a.place <> ALL (busy));
  END IF;
END $$;

-- Not delivered: they are shown again after a delay, at `next_at` (NULL: it has no end), and their attempts are written down, if there
-- were any. The positions of those that were held, and of those whose lanes somebody else keeps locked.
CREATE FUNCTION nack_jobs(
  lane_ids bigint[], seqs bigint[], epochs bigint[], failed integer[], delay_s double precision, unlock boolean,
  wall double precision, next_at double precision, began double precision[], durations double precision[],
  statuses integer[], errors text[], counting boolean[], details text[], excerpts text[], OUT held integer[], OUT busy integer[])
LANGUAGE plpgsql SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_material = off SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
DECLARE
  own_lanes bigint[];
BEGIN
  SELECT n.held, n.busy, n.own_lanes INTO held, busy, own_lanes
  FROM nack(lane_ids, seqs, epochs, failed, delay_s, unlock, to_timestamp(wall)) AS n;
  WITH given AS MATERIALIZED (
    SELECT s.ctid AS at, h.own_lane, g.*
    FROM unnest(seqs, failed, began, durations, statuses, errors, counting, details, excerpts) WITH ORDINALITY
        AS g (seq, failures, began_at, duration_s, status, error, counts, detail, excerpt, place)
      JOIN unnest(held, own_lanes) AS h (place, own_lane) ON h.place = g.place
      CROSS JOIN LATERAL (SELECT k.ctid FROM job_states AS k WHERE k.number = number_at(g.seq) OFFSET 0) AS s
    WHERE g.began_at IS NOT NULL OR unlock OR delay_s > 0),
  done AS (
    UPDATE job_states AS s SET
      lane = coalesce(g.own_lane, s.lane),
      status = CASE WHEN g.counts OR next_at IS NULL THEN 'ERROR' ELSE s.status END,
      next_attempt_at = CASE WHEN g.counts OR delay_s > 0 THEN next_at ELSE s.next_attempt_at END,
      attempts = s.attempts + (g.began_at IS NOT NULL)::integer,
      failures = CASE WHEN g.began_at IS NULL THEN s.failures ELSE g.failures END,
      last_error = coalesce(g.detail, s.last_error)
    FROM given AS g WHERE s.ctid = g.at
    RETURNING s.number, s.attempts, g.*)
  INSERT INTO job_attempts (job, attempt, began_at, duration_s, status, error, counts, detail, excerpt)
  SELECT d.number, d.attempts, d.began_at, d.duration_s, d.status, d.error, d.counts, d.detail, d.excerpt
  FROM done AS d WHERE d.began_at IS NOT NULL;
END $$;
