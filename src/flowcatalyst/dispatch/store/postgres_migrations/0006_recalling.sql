-- The lanes of jobs, and of a group with those of jobs that left it when they failed.
CREATE FUNCTION lanes_to_recall(q integer, ids text[], name_of_group text) RETURNS bigint[] LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off SET enable_material = off
SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
BEGIN
  RETURN ARRAY(
    SELECT DISTINCT s.lane FROM unnest(ids) AS i (id)
      CROSS JOIN LATERAL (SELECT k.number FROM jobs AS k WHERE k.id = i.id OFFSET 0) AS j
      CROSS JOIN LATERAL (SELECT k.lane FROM job_states AS k WHERE k.number = j.number OFFSET 0) AS s
    WHERE s.lane IS NOT NULL)
  || ARRAY(SELECT l.id FROM lanes AS l WHERE l.queue = q AND l.name = name_of_group)
  || ARRAY(SELECT l.id FROM lanes AS l WHERE l.queue = q AND l.name IS NULL AND l.grp = name_of_group);
END $$;

-- A job that did not fail can be tried again at once too, if it was told to wait: otherwise as before.
--
-- Does one thing to jobs: 'retry', 'cancel' or 'change', of which NULL leaves things as they are. What came of each, in
-- order: 'done', or else its status, 'UNGROUPED', 'BUSY' if somebody else changes it, 'UNKNOWN'. `note` goes into the
-- history of those it was done to, if it is not NULL.
CREATE OR REPLACE FUNCTION act_on_jobs(
  q integer, numbers bigint[], action text, wall double precision, who text, note text, new_mode text, new_target text,
  new_content_type text, new_headers text, new_payload bytea)
RETURNS text[] LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off SET enable_material = off
SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
DECLARE
  lane_ids bigint[];
  busy_lanes bigint[];
  locked bigint[];
  outcomes text[] := array_fill('UNKNOWN'::text, ARRAY[cardinality(numbers)]);
  outcome text;
  touched bigint[] := '{}';
  ended bigint[] := '{}';
  job record;
  new_lane bigint;
BEGIN
  lane_ids := ARRAY(
    SELECT DISTINCT l.id FROM unnest(numbers) AS n (number)
      CROSS JOIN LATERAL (SELECT k.lane, k.grp FROM job_states AS k WHERE k.number = n.number OFFSET 0) AS s
      CROSS JOIN LATERAL (
        SELECT s.lane AS id UNION ALL
        SELECT k.id FROM lanes AS k WHERE new_mode <> 'IMMEDIATE' AND k.queue = q AND k.name = s.grp) AS l
    WHERE l.id IS NOT NULL);
  busy_lanes := lock_lanes(lane_ids);
  locked := ARRAY(SELECT s.number FROM job_states AS s WHERE s.number = ANY (numbers) FOR UPDATE SKIP LOCKED);
  FOR job IN
    SELECT n.position, s.*, is_in_hand(s.lane, s.place) AS in_hand, j.pool
    FROM unnest(numbers) WITH ORDINALITY AS n (number, position)
      CROSS JOIN LATERAL (SELECT k.* FROM job_states AS k WHERE k.number = n.number OFFSET 0) AS s
      CROSS JOIN LATERAL (SELECT k.pool FROM jobs AS k WHERE k.number = n.number OFFSET 0) AS j
  LOOP
    outcome := CASE
      WHEN job.finished_at IS NOT NULL THEN job.status
      WHEN job.number <> ALL (locked) OR (job.lane IS NOT NULL AND job.lane <> ALL (lane_ids)) OR job.lane = ANY (busy_lanes)
        THEN 'BUSY'
      WHEN job.in_hand THEN 'QUEUED'
      WHEN action = 'retry' AND job.status <> 'ERROR' AND NOT EXISTS (
        SELECT 1 FROM messages AS m WHERE m.lane = job.lane AND m.seq = job.place AND m.visible_at > server_time())
        THEN job.status
      WHEN action = 'change' AND new_mode <> 'IMMEDIATE' AND job.grp IS NULL THEN 'UNGROUPED'
      ELSE 'done' END;
    outcomes[job.position] := outcome;
    CONTINUE WHEN outcome <> 'done';
    new_lane := NULL;
    IF action = 'cancel' THEN
      ended := ended || job.number;
    ELSIF action = 'retry' THEN
      PERFORM show_at_once(q, job.lane, job.place);
      UPDATE job_states AS s SET status = 'PENDING', failures = 0, next_attempt_at = NULL WHERE s.number = job.number;
      touched := touched || job.lane;
    ELSE
      UPDATE jobs AS j SET mode = coalesce(new_mode, j.mode), target = coalesce(new_target, j.target),
        content_type = coalesce(new_content_type, j.content_type), headers = coalesce(new_headers, j.headers),
        payload = coalesce(new_payload, j.payload)
      WHERE j.number = job.number;
      IF new_mode <> job.mode AND job.lane IS NOT NULL THEN
        new_lane := move_job(q, job.lane, job.place, job.pool, CASE WHEN new_mode <> 'IMMEDIATE' THEN job.grp END,
          new_mode = 'NEXT_ON_ERROR' AND (job.status = 'ERROR' OR job.next_attempt_at IS NOT NULL));
        touched := touched || job.lane || new_lane;
        UPDATE job_states AS s SET mode = new_mode, lane = new_lane WHERE s.number = job.number;
      ELSIF new_mode <> job.mode THEN
        UPDATE job_states AS s SET mode = new_mode WHERE s.number = job.number;
      END IF;
      -- Receipts of a lease that ended unnoticed are good for nothing now: what their router sent is not what is to be sent.
      UPDATE lanes AS l SET epoch = l.epoch + 1 WHERE l.id IN (job.lane, new_lane) AND l.owner IS NULL;
    END IF;
    IF note IS NOT NULL THEN
      INSERT INTO job_actions (job, at, actor, action) VALUES (job.number, wall, who, note);
    END IF;
  END LOOP;
  IF cardinality(ended) > 0 THEN
    PERFORM end_jobs(q, ended, 'CANCELLED', wall);
  END IF;
  IF cardinality(touched) > 0 THEN
    PERFORM settle_lanes(ARRAY(SELECT DISTINCT t FROM unnest(touched) AS t));
  END IF;
  PERFORM wake(q);
  RETURN outcomes;
END $$;
