-- How jobs are handed out and settled: the functions of lanes, and what follows for the jobs, in one statement.

-- `look`, after those jobs were let in whose time has come.
CREATE FUNCTION look_for_jobs(
  q integer, after text, most integer, wall double precision,
  OUT pools text[], OUT turns bigint[], OUT due_in_s double precision)
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
  next_at double precision := enter_due_jobs(q, wall, 500);
BEGIN
  SELECT l.pools, l.turns, least(l.due_in_s, next_at - wall) INTO pools, turns, due_in_s FROM look(q, after, most) AS l;
END $$;

-- `take`, with what is to be sent.
CREATE FUNCTION take_jobs(q integer, owner_id bigint, claim_no bigint, limited_pools text[], limits integer[], share integer)
RETURNS TABLE (
  lane bigint, seq bigint, epoch bigint, receives integer, failures integer, grp text, attempts integer, id text,
  target text, pool text, message_group text, mode text, content_type text, headers text, timeout_s double precision,
  max_retries integer, delays double precision[], payload bytea)
LANGUAGE plpgsql SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_material = off SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
    SELECT t.lane, t.seq, t.epoch, t.receives, t.failures, t.grp, s.attempts, j.id, j.target, j.pool, j.grp, j.mode,
      j.content_type, j.headers, j.timeout_s, j.max_retries, j.delays, j.payload
    FROM take(q, owner_id, claim_no, limited_pools, limits, share) AS t
      CROSS JOIN LATERAL (SELECT k.* FROM jobs AS k WHERE k.number = number_at(t.seq) OFFSET 0) AS j
      CROSS JOIN LATERAL (SELECT k.attempts FROM job_states AS k WHERE k.number = number_at(t.seq) OFFSET 0) AS s
    ORDER BY t.turn, t.seq;
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

-- Not delivered: they are shown again after a delay, which may be infinite, and their attempts are written down, if there
-- were any. The positions of those that were held, and of those whose lanes somebody else keeps locked.
CREATE FUNCTION nack_jobs(
  lane_ids bigint[], seqs bigint[], epochs bigint[], failed integer[], delay_s double precision, unlock boolean,
  wall double precision, began double precision[], durations double precision[], statuses integer[], errors text[],
  counting boolean[], details text[], excerpts text[], OUT held integer[], OUT busy integer[])
LANGUAGE plpgsql SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_material = off SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
DECLARE
  next_at double precision := CASE WHEN delay_s < 'infinity' THEN wall + delay_s END;
  own_lanes bigint[];
BEGIN
  SELECT n.held, n.busy, n.own_lanes INTO held, busy, own_lanes
  FROM nack(lane_ids, seqs, epochs, failed, delay_s, unlock) AS n;
  WITH given AS MATERIALIZED (
    SELECT s.ctid AS at, h.own_lane, g.*
    FROM unnest(seqs, failed, began, durations, statuses, errors, counting, details, excerpts) WITH ORDINALITY
        AS g (seq, failures, began_at, duration_s, status, error, counts, detail, excerpt, place)
      JOIN unnest(held, own_lanes) AS h (place, own_lane) ON h.place = g.place
      CROSS JOIN LATERAL (SELECT k.ctid FROM job_states AS k WHERE k.number = number_at(g.seq) OFFSET 0) AS s
    WHERE g.began_at IS NOT NULL OR unlock),
  done AS (
    UPDATE job_states AS s SET
      lane = coalesce(g.own_lane, s.lane),
      status = CASE WHEN g.counts THEN 'ERROR' ELSE s.status END,
      next_attempt_at = CASE WHEN g.began_at IS NULL THEN s.next_attempt_at ELSE next_at END,
      attempts = s.attempts + (g.began_at IS NOT NULL)::integer,
      failures = CASE WHEN g.began_at IS NULL THEN s.failures ELSE g.failures END,
      last_error = coalesce(g.detail, s.last_error)
    FROM given AS g WHERE s.ctid = g.at
    RETURNING s.number, s.attempts, g.*)
  INSERT INTO job_attempts (job, attempt, began_at, duration_s, status, error, counts, detail, excerpt)
  SELECT d.number, d.attempts, d.began_at, d.duration_s, d.status, d.error, d.counts, d.detail, d.excerpt
  FROM done AS d WHERE d.began_at IS NOT NULL;
END $$;
