-- Jobs for routers on other machines: one of a lane is published at a time, and claimed by who is called back for it.
-- docs/adr/0022 tells why the database keeps who is out.

-- Whether the job whose message is there is out with such a router.
CREATE FUNCTION is_out(in_lane bigint, place bigint) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN in_lane IS NOT NULL AND EXISTS (
    SELECT 1 FROM lanes AS l
    WHERE l.id = in_lane AND l.owner IS NULL AND l.out_epoch = l.epoch AND l.leased_to = place AND l.out_until > server_time());
END $$;

-- `take_firsts`, with what a pointer says. What expired meanwhile is ended instead. They get no positions: who is first is known
-- when one begins.
CREATE FUNCTION take_first_jobs(
  q integer, owner_id bigint, claim_no bigint, limited_pools text[], limits integer[], wall double precision)
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
BEGIN
  SELECT array_agg(t.lane), array_agg(t.seq), array_agg(t.epoch), array_agg(t.receives), array_agg(t.failures), array_agg(t.grp)
  INTO lane_ids, seqs, epochs, all_receives, all_failures, groups
  FROM take_firsts(q, owner_id, claim_no, limited_pools, limits) AS t;
  IF EXISTS (SELECT 1 FROM job_states AS s WHERE s.expires_at <= wall AND s.finished_at IS NULL) THEN
    PERFORM end_taken(lane_ids, seqs, epochs, wall);
  END IF;
  RETURN QUERY
    SELECT t.lane, t.seq, t.epoch, t.receives, t.failures, t.grp, s.attempts, j.id, j.target, j.pool, j.grp, j.mode,
      j.content_type, j.headers, j.timeout_s, j.max_retries, j.delays, greatest(j.created_at, j.scheduled_for),
      j.expires_at, NULL::bytea, NULL::text, NULL::bigint, NULL::bigint
    FROM unnest(lane_ids, seqs, epochs, all_receives, all_failures, groups) WITH ORDINALITY
        AS t (lane, seq, epoch, receives, failures, grp, place)
      CROSS JOIN LATERAL (SELECT k.* FROM jobs AS k WHERE k.number = number_at(t.seq) OFFSET 0) AS j
      CROSS JOIN LATERAL (SELECT k.attempts FROM job_states AS k WHERE k.number = number_at(t.seq) OFFSET 0) AS s
    WHERE coalesce(j.expires_at > wall, true)
    ORDER BY t.place;
END $$;

-- `claim_out`, with what is to be sent if it was claimed. One whose time is over is stale: it is about to be ended.
CREATE FUNCTION claim_job(
  owner_id bigint, claim_no bigint, job_id text, in_lane bigint, place bigint, of_epoch bigint, wall double precision)
RETURNS TABLE (
  outcome text, lane bigint, seq bigint, epoch bigint, receives integer, failures integer, grp text, attempts integer, id text,
  target text, pool text, message_group text, mode text, content_type text, headers text, timeout_s double precision,
  max_retries integer, delays double precision[], due_at double precision, expires_at double precision, payload bytea,
  subscription text, group_position bigint, delivered bigint)
LANGUAGE plpgsql SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_material = off SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
DECLARE
  job jobs;
  claimed record;
  positions bigint[];
BEGIN
  SELECT k.* INTO job FROM jobs AS k WHERE k.number = number_at(place);
  outcome := 'stale';
  IF job.id IS NOT DISTINCT FROM job_id AND coalesce(job.expires_at > wall, true) THEN
    SELECT c.* INTO claimed FROM claim_out(owner_id, claim_no, in_lane, place, of_epoch) AS c;
    outcome := claimed.outcome;
  END IF;
  IF outcome <> 'claimed' THEN
    RETURN NEXT;
    RETURN;
  END IF;
  positions := give_positions(ARRAY[claimed.grp], ARRAY[place]);
  RETURN QUERY
    SELECT claimed.outcome, in_lane, place, of_epoch + 1, claimed.receives, claimed.failures, claimed.grp, s.attempts, j.id,
      j.target, j.pool, j.grp, j.mode, j.content_type, j.headers, j.timeout_s, j.max_retries, j.delays,
      greatest(j.created_at, j.scheduled_for), j.expires_at, j.payload, j.subscription, positions[1], g.delivered
    FROM jobs AS j  -- as it is now that its lane is locked
      CROSS JOIN LATERAL (SELECT k.attempts FROM job_states AS k WHERE k.number = j.number OFFSET 0) AS s
      LEFT JOIN LATERAL (SELECT k.delivered FROM group_positions AS k WHERE k.name = claimed.grp OFFSET 0) AS g ON true
    WHERE j.number = number_at(place);
END $$;

-- A job that is out can be tried again too: it is published anew. Who changes one makes it come back by that.
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
    SELECT n.position, s.*, is_in_hand(s.lane, s.place) AS in_hand, is_out(s.lane, s.place) AS out, j.pool
    FROM unnest(numbers) WITH ORDINALITY AS n (number, position)
      CROSS JOIN LATERAL (SELECT k.* FROM job_states AS k WHERE k.number = n.number OFFSET 0) AS s
      CROSS JOIN LATERAL (SELECT k.pool FROM jobs AS k WHERE k.number = n.number OFFSET 0) AS j
  LOOP
    outcome := CASE
      WHEN job.finished_at IS NOT NULL THEN job.status
      WHEN job.number <> ALL (locked) OR (job.lane IS NOT NULL AND job.lane <> ALL (lane_ids)) OR job.lane = ANY (busy_lanes)
        THEN 'BUSY'
      WHEN job.in_hand THEN 'QUEUED'
      WHEN action = 'retry' AND job.status <> 'ERROR' AND NOT job.out AND NOT EXISTS (
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
      UPDATE lanes AS l SET epoch = l.epoch + 1 WHERE l.id = job.lane AND job.out;
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
      touched := touched || ARRAY(
        SELECT l.id FROM lanes AS l WHERE l.id IN (job.lane, new_lane) AND l.owner IS NULL AND l.out_until > server_time());
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
