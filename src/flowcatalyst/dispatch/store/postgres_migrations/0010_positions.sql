-- Positions: who went first in a group. Each job that is handed out in order has one, which is kept with its first attempt; one
-- that was given to a job that did not begin is given to nobody else.
--
-- The rows of groups are locked last of all, by name, so that whoever has one waits for nobody.

-- The positions of jobs that were just taken, in order: those they have, else the next ones of their groups. NULL for one
-- without a group, or that is finished.
CREATE FUNCTION give_positions(groups text[], seqs bigint[]) RETURNS bigint[] LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  had bigint[];
  places integer[];  -- of those that are given one
  given bigint[];
BEGIN
  IF NOT EXISTS (SELECT 1 FROM unnest(groups) AS one WHERE one IS NOT NULL) THEN
    RETURN NULL;
  END IF;
  SELECT array_agg(CASE WHEN t.grp IS NOT NULL THEN s.position END ORDER BY t.place),
    array_agg(t.place::integer ORDER BY t.place)
      FILTER (WHERE t.grp IS NOT NULL AND s.position IS NULL AND s.finished_at IS NULL)
  INTO had, places
  FROM unnest(groups, seqs) WITH ORDINALITY AS t (grp, seq, place)
    CROSS JOIN LATERAL (
      SELECT k.position, k.finished_at FROM job_states AS k WHERE k.number = number_at(t.seq) OFFSET 0) AS s;
  IF places IS NULL THEN
    RETURN had;
  END IF;
  WITH new AS MATERIALIZED (
    SELECT p.place, groups[p.place] AS grp, row_number() OVER (PARTITION BY groups[p.place] ORDER BY p.place) AS n
    FROM unnest(places) AS p (place)),
  counted AS (SELECT new.grp COLLATE "C" AS grp, count(*) AS jobs FROM new GROUP BY 1 ORDER BY 1),
  given_now AS (
    INSERT INTO group_positions AS g (name, given) SELECT counted.grp, counted.jobs FROM counted
    ON CONFLICT (name) DO UPDATE SET given = g.given + excluded.given
    RETURNING g.name, g.given)
  SELECT array_agg(r.given - c.jobs + new.n ORDER BY new.place) INTO given
  FROM new JOIN counted AS c ON c.grp = new.grp JOIN given_now AS r ON r.name = c.grp;
  FOR i IN 1..cardinality(places) LOOP
    had[places[i]] := given[i];
  END LOOP;
  RETURN had;
END $$;

-- `take`, with what is to be sent. What expired meanwhile is ended instead.
DROP FUNCTION take_jobs;
CREATE FUNCTION take_jobs(
  q integer, owner_id bigint, claim_no bigint, limited_pools text[], limits integer[], share integer, wall double precision)
RETURNS TABLE (
  lane bigint, seq bigint, epoch bigint, receives integer, failures integer, grp text, attempts integer, id text,
  target text, pool text, message_group text, mode text, content_type text, headers text, timeout_s double precision,
  max_retries integer, delays double precision[], due_at double precision, expires_at double precision, payload bytea,
  subscription text, group_position bigint, delivered bigint)
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
  positions bigint[];
BEGIN
  SELECT array_agg(t.lane), array_agg(t.seq), array_agg(t.epoch), array_agg(t.receives), array_agg(t.failures), array_agg(t.grp)
  INTO lane_ids, seqs, epochs, all_receives, all_failures, groups
  FROM take(q, owner_id, claim_no, limited_pools, limits, share) AS t;
  IF EXISTS (SELECT 1 FROM job_states AS s WHERE s.expires_at <= wall AND s.finished_at IS NULL) THEN
    PERFORM end_taken(lane_ids, seqs, epochs, wall);
  END IF;
  positions := give_positions(groups, seqs);
  RETURN QUERY
    SELECT t.lane, t.seq, t.epoch, t.receives, t.failures, t.grp, s.attempts, j.id, j.target, j.pool, j.grp, j.mode,
      j.content_type, j.headers, j.timeout_s, j.max_retries, j.delays, greatest(j.created_at, j.scheduled_for),
      j.expires_at, j.payload, j.subscription, t.group_position, g.delivered
    FROM unnest(lane_ids, seqs, epochs, all_receives, all_failures, groups, positions) WITH ORDINALITY
        AS t (lane, seq, epoch, receives, failures, grp, group_position, place)
      CROSS JOIN LATERAL (SELECT k.* FROM jobs AS k WHERE k.number = number_at(t.seq) OFFSET 0) AS j
      CROSS JOIN LATERAL (SELECT k.attempts FROM job_states AS k WHERE k.number = number_at(t.seq) OFFSET 0) AS s
      LEFT JOIN LATERAL (SELECT k.delivered FROM group_positions AS k WHERE k.name = t.grp OFFSET 0) AS g ON true
    WHERE coalesce(j.expires_at > wall, true)
    ORDER BY t.place;
END $$;

-- Delivered: their messages go, and they are COMPLETED with their attempts, which are NULL where there was none. The
-- positions of those whose receipts are stale, and of those whose lanes somebody else keeps locked.
DROP FUNCTION ack_jobs;
CREATE FUNCTION ack_jobs(
  lane_ids bigint[], seqs bigint[], epochs bigint[], wall double precision, began double precision[],
  durations double precision[], statuses integer[], errors text[], counting boolean[], details text[], excerpts text[],
  positions bigint[], OUT stale integer[], OUT busy integer[])
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
    SELECT s.ctid AS at, g.* FROM unnest(seqs, began, durations, statuses, errors, counting, details, excerpts, positions)
        AS g (seq, began_at, duration_s, status, error, counts, detail, excerpt, group_position)
      CROSS JOIN LATERAL (SELECT k.ctid FROM job_states AS k WHERE k.number = number_at(g.seq) OFFSET 0) AS s
    WHERE are_all OR g.seq = ANY (deleted)),
  done AS (
    UPDATE job_states AS s SET status = 'COMPLETED', finished_at = wall, next_attempt_at = NULL, last_error = '', lane = NULL,
      attempts = s.attempts + (g.began_at IS NOT NULL)::integer, position = coalesce(g.group_position, s.position)
    FROM given AS g WHERE s.ctid = g.at
    RETURNING s.number, s.attempts, g.*)
  INSERT INTO job_attempts (job, attempt, began_at, duration_s, status, error, counts, detail, excerpt)
  SELECT d.number, d.attempts, d.began_at, d.duration_s, d.status, d.error, d.counts, d.detail, d.excerpt
  FROM done AS d WHERE d.began_at IS NOT NULL;
  IF EXISTS (SELECT 1 FROM unnest(positions) AS p WHERE p IS NOT NULL) THEN
    INSERT INTO group_positions AS p (name, given, delivered)
    SELECT last.grp, last.group_position, last.group_position FROM (
      SELECT DISTINCT ON (s.grp) s.grp, g.group_position
      FROM unnest(seqs, positions) WITH ORDINALITY AS g (seq, group_position, place)
        CROSS JOIN LATERAL (SELECT k.grp FROM job_states AS k WHERE k.number = number_at(g.seq) OFFSET 0) AS s
      WHERE g.group_position IS NOT NULL AND (are_all OR g.seq = ANY (deleted)) AND s.grp IS NOT NULL
      ORDER BY s.grp, g.place DESC) AS last
    ORDER BY last.grp
    ON CONFLICT (name) DO UPDATE SET delivered = excluded.delivered, given = greatest(p.given, excluded.given);
  END IF;
  IF NOT are_all THEN  -- what was acked before is well; what is in another state was settled by somebody else
    stale := ARRAY(
      SELECT a.place::integer FROM unnest(seqs) WITH ORDINALITY AS a (seq, place)
        CROSS JOIN LATERAL (SELECT k.status FROM job_states AS k WHERE k.number = number_at(a.seq) OFFSET 0) AS s
      WHERE s.status <> 'COMPLETED' AND a.place <> ALL (busy));
  END IF;
END $$;

-- Not delivered: they are shown again after a delay, at `next_at` (NULL: it has no end), and their attempts are written down,
-- if there were any. The positions of those that were held, and of those whose lanes somebody else keeps locked.
DROP FUNCTION nack_jobs;
CREATE FUNCTION nack_jobs(
  lane_ids bigint[], seqs bigint[], epochs bigint[], failed integer[], delay_s double precision, unlock boolean,
  wall double precision, next_at double precision, began double precision[], durations double precision[],
  statuses integer[], errors text[], counting boolean[], details text[], excerpts text[], positions bigint[],
  OUT held integer[], OUT busy integer[])
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
    FROM unnest(seqs, failed, began, durations, statuses, errors, counting, details, excerpts, positions) WITH ORDINALITY
        AS g (seq, failures, began_at, duration_s, status, error, counts, detail, excerpt, group_position, place)
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
      last_error = coalesce(g.detail, s.last_error),
      position = CASE WHEN g.began_at IS NULL THEN s.position ELSE coalesce(g.group_position, s.position) END
    FROM given AS g WHERE s.ctid = g.at
    RETURNING s.number, s.attempts, g.*)
  INSERT INTO job_attempts (job, attempt, began_at, duration_s, status, error, counts, detail, excerpt)
  SELECT d.number, d.attempts, d.began_at, d.duration_s, d.status, d.error, d.counts, d.detail, d.excerpt
  FROM done AS d WHERE d.began_at IS NOT NULL;
END $$;

-- Forgets up to so many jobs that were finished before a time, the first ones first, with all that is known of them; how many.
CREATE OR REPLACE FUNCTION drop_finished_jobs(before double precision, most integer) RETURNS integer LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
DECLARE
  numbers bigint[] := ARRAY(
    SELECT s.number FROM job_states AS s WHERE s.finished_at < before
    ORDER BY s.finished_at LIMIT most FOR UPDATE SKIP LOCKED);
  groups text[] := ARRAY(SELECT DISTINCT j.grp FROM jobs AS j WHERE j.number = ANY (numbers) AND j.grp IS NOT NULL);
BEGIN
  DELETE FROM job_attempts AS a WHERE a.job = ANY (numbers);
  DELETE FROM job_actions AS a WHERE a.job = ANY (numbers);
  DELETE FROM job_marks AS m WHERE m.number = ANY (numbers);
  DELETE FROM job_keys AS k WHERE k.key = ANY (ARRAY(
    SELECT j.idempotency_key FROM jobs AS j WHERE j.number = ANY (numbers) AND j.idempotency_key IS NOT NULL));
  DELETE FROM jobs AS j WHERE j.number = ANY (numbers);
  DELETE FROM job_states AS s WHERE s.number = ANY (numbers);
  PERFORM 1 FROM group_positions AS g WHERE g.name = ANY (groups) ORDER BY g.name FOR UPDATE;
  DELETE FROM group_positions AS g  -- those that were locked before it was looked for jobs
  WHERE g.name = ANY (groups) AND NOT EXISTS (SELECT 1 FROM jobs AS j WHERE j.grp = g.name);
  RETURN cardinality(numbers);
END $$;
