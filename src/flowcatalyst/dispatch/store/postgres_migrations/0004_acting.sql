-- What people do to jobs and groups, and how finished jobs are forgotten.

-- Does one thing to jobs: 'retry', 'cancel' or 'change', of which NULL leaves things as they are. What came of each, in
-- order: 'done', or else its status, 'UNGROUPED', 'BUSY' if somebody else changes it, 'UNKNOWN'. `note` goes into the
-- history of those it was done to, if it is not NULL.
CREATE FUNCTION act_on_jobs(
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
      WHEN action = 'retry' AND job.status <> 'ERROR' THEN job.status
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

-- A message no longer waits, nor has it failed. Its lane is locked by the caller, who settles it.
CREATE FUNCTION show_at_once(q integer, in_lane bigint, place bigint) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  was_delayed integer;
BEGIN
  SELECT (l.owner IS NOT NULL AND l.delayed > 0 AND m.given_back = l.epoch AND m.visible_at IS NOT NULL)::integer
  INTO was_delayed FROM lanes AS l JOIN messages AS m ON m.lane = l.id AND m.seq = place WHERE l.id = in_lane;
  UPDATE messages AS m SET visible_at = NULL, failures = 0, failed_at = NULL WHERE m.lane = in_lane AND m.seq = place;
  UPDATE lanes AS l SET delayed = l.delayed - was_delayed WHERE l.id = in_lane AND was_delayed > 0;
  PERFORM count_up(q, 0, -was_delayed);
END $$;

-- Moves a message, as it is, to the lane of a group, or to one of its own if there is none or with `aside`; which that is.
-- Its present lane is locked by the caller, who settles both.
CREATE FUNCTION move_job(q integer, from_lane bigint, place bigint, its_pool text, to_group text, aside boolean) RETURNS bigint
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  was_delayed integer;
  target record;
BEGIN
  IF to_group IS NULL OR aside THEN
    INSERT INTO lanes (id, queue, grp, pool, turn, messages, head)
    SELECT n, q, to_group, its_pool, n, 1, place FROM nextval('numbers') AS n RETURNING id, epoch, leased_to INTO target;
  ELSE
    PERFORM lock_groups(q, ARRAY[to_group], ARRAY[its_pool], ARRAY[place]);
    SELECT l.id, l.epoch, l.leased_to INTO target FROM lanes AS l WHERE l.queue = q AND l.name = to_group;
  END IF;
  SELECT (l.owner IS NOT NULL AND l.delayed > 0 AND m.given_back = l.epoch AND m.visible_at IS NOT NULL)::integer
  INTO was_delayed FROM lanes AS l JOIN messages AS m ON m.lane = l.id AND m.seq = place WHERE l.id = from_lane;
  UPDATE messages AS m SET lane = target.id, given_back = CASE WHEN place <= target.leased_to THEN target.epoch ELSE 0 END
  WHERE m.lane = from_lane AND m.seq = place;
  UPDATE lanes AS l SET messages = l.messages - 1, delayed = l.delayed - was_delayed WHERE l.id = from_lane;
  PERFORM count_up(q, 0, -was_delayed);
  RETURN target.id;
END $$;

-- The lanes of a group, locked: its own, which is made if there is none, and those of messages that left it.
CREATE FUNCTION lock_all_of_group(q integer, name_of_group text) RETURNS bigint[] LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  group_lane bigint;
BEGIN
  INSERT INTO lanes AS l (id, queue, name, grp, pool, turn, messages, head)
  SELECT n, q, name_of_group, name_of_group, '', n, 0, 0 FROM nextval('numbers') AS n
  ON CONFLICT (queue, name) WHERE name IS NOT NULL DO UPDATE SET messages = l.messages RETURNING l.id INTO group_lane;
  RETURN group_lane || ARRAY(
    SELECT l.id FROM lanes AS l WHERE l.queue = q AND l.name IS NULL AND l.grp = name_of_group ORDER BY l.id FOR UPDATE);
END $$;

-- Nothing more of a group is handed out. Who holds it already goes on holding it.
CREATE FUNCTION hold_group(q integer, name_of_group text, wall double precision, who text) RETURNS void LANGUAGE plpgsql
SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
  ids bigint[] := lock_all_of_group(q, name_of_group);
BEGIN
  INSERT INTO holds (queue, grp, held_at, held_by) VALUES (q, name_of_group, to_timestamp(wall), who) ON CONFLICT DO NOTHING;
  PERFORM settle_lanes(ids);
END $$;

CREATE FUNCTION release_group(q integer, name_of_group text) RETURNS void LANGUAGE plpgsql
SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
  ids bigint[] := lock_all_of_group(q, name_of_group);
BEGIN
  DELETE FROM holds AS h WHERE h.queue = q AND h.grp = name_of_group;
  PERFORM settle_lanes(ids);
  PERFORM wake(q);
END $$;

-- Forgets up to so many jobs that were finished before a time, the first ones first, with all that is known of them; how many.
CREATE FUNCTION drop_finished_jobs(before double precision, most integer) RETURNS integer LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
DECLARE
  numbers bigint[] := ARRAY(
    SELECT s.number FROM job_states AS s WHERE s.finished_at < before
    ORDER BY s.finished_at LIMIT most FOR UPDATE SKIP LOCKED);
BEGIN
  DELETE FROM job_attempts AS a WHERE a.job = ANY (numbers);
  DELETE FROM job_actions AS a WHERE a.job = ANY (numbers);
  DELETE FROM job_marks AS m WHERE m.number = ANY (numbers);
  DELETE FROM job_keys AS k WHERE k.key = ANY (ARRAY(
    SELECT j.idempotency_key FROM jobs AS j WHERE j.number = ANY (numbers) AND j.idempotency_key IS NOT NULL));
  DELETE FROM jobs AS j WHERE j.number = ANY (numbers);
  DELETE FROM job_states AS s WHERE s.number = ANY (numbers);
  RETURN cardinality(numbers);
END $$;

-- Nobody else changes these jobs until the transaction ends, but for those that somebody has locked already.
CREATE FUNCTION lock_jobs(numbers bigint[]) RETURNS void LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
BEGIN
  PERFORM lock_lanes(ARRAY(SELECT DISTINCT s.lane FROM job_states AS s WHERE s.number = ANY (numbers) AND s.lane IS NOT NULL));
  PERFORM 1 FROM job_states AS s WHERE s.number = ANY (numbers) FOR UPDATE SKIP LOCKED;
END $$;
