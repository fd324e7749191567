-- Pausing subscriptions, and recalling what is in hand of one.

-- Jobs that come from now on wait, or do not. Whoever made some before is through: they are there for `settle_pauses` to see.
CREATE FUNCTION set_paused(q integer, code text, is_paused boolean) RETURNS void LANGUAGE plpgsql
SET search_path FROM CURRENT AS $$
#variable_conflict use_column
BEGIN
  PERFORM lock_subscriptions(true);
  IF is_paused THEN
    INSERT INTO paused_tags (queue, tag) VALUES (q, code) ON CONFLICT DO NOTHING;
  ELSE
    DELETE FROM paused_tags AS p WHERE p.queue = q AND p.tag = code;
  END IF;
  IF FOUND THEN
    INSERT INTO pause_walks (subscription, walked_to) VALUES (code, 0)
    ON CONFLICT (subscription) DO UPDATE SET walked_to = 0;
  END IF;
END $$;

-- Settles the lanes of up to so many jobs of subscriptions that were paused or resumed, by their numbers; of how many, and
-- whether it ended before one whose lane somebody else keeps locked. Two who do so take turns.
CREATE FUNCTION settle_pauses(q integer, most integer, OUT settled integer, OUT is_busy boolean) LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off SET enable_material = off
SET enable_hashjoin = off SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
DECLARE
  walk pause_walks;
  numbers bigint[];
  ids bigint[];
  busy_lanes bigint[];
  first_left bigint;
BEGIN
  settled := 0;
  is_busy := false;
  LOOP
    SELECT w.* INTO walk FROM pause_walks AS w ORDER BY w.subscription LIMIT 1 FOR UPDATE;
    IF walk.subscription IS NULL THEN
      EXIT WHEN NOT EXISTS (SELECT 1 FROM pause_walks);
      CONTINUE;  -- somebody else finished the one that we waited for
    END IF;
    numbers := ARRAY(
      SELECT s.number FROM job_states AS s
      WHERE s.subscription = walk.subscription AND s.finished_at IS NULL AND s.number > walk.walked_to
      ORDER BY s.subscription, s.number LIMIT most - settled);
    IF cardinality(numbers) = 0 THEN
      DELETE FROM pause_walks AS w WHERE w.subscription = walk.subscription;
      CONTINUE;
    END IF;
    SELECT coalesce(array_agg(DISTINCT s.lane) FILTER (WHERE s.lane IS NOT NULL), '{}') INTO ids
    FROM unnest(numbers) AS n (number)
      CROSS JOIN LATERAL (SELECT k.lane FROM job_states AS k WHERE k.number = n.number OFFSET 0) AS s;
    busy_lanes := lock_lanes(ids);
    -- One that moved to another lane before we had this one is looked at again.
    SELECT min(n.number) FILTER (WHERE s.lane IS NOT NULL AND (s.lane = ANY (busy_lanes) OR s.lane <> ALL (ids))),
      coalesce(bool_or(s.lane = ANY (busy_lanes)), false)
    INTO first_left, is_busy FROM unnest(numbers) AS n (number)
      CROSS JOIN LATERAL (SELECT k.lane FROM job_states AS k WHERE k.number = n.number OFFSET 0) AS s;
    PERFORM settle_lanes(ARRAY(
      SELECT s.lane FROM unnest(numbers) AS n (number)
        CROSS JOIN LATERAL (SELECT k.lane FROM job_states AS k WHERE k.number = n.number OFFSET 0) AS s
      WHERE s.lane IS NOT NULL AND coalesce(n.number < first_left, true)
      GROUP BY s.lane ORDER BY min(n.number)));
    UPDATE pause_walks AS w SET walked_to = coalesce(first_left - 1, numbers[cardinality(numbers)])
    WHERE w.subscription = walk.subscription;
    settled := settled + (SELECT count(*) FROM unnest(numbers) AS n WHERE coalesce(n < first_left, true));
    EXIT WHEN is_busy OR settled >= most;
  END LOOP;
  IF settled > 0 THEN
    PERFORM wake(q);
  END IF;
END $$;

-- The lanes of jobs, of a group with those of jobs that left it when they failed, and those of which jobs of a subscription are
-- in hand.
DROP FUNCTION lanes_to_recall;
CREATE FUNCTION lanes_to_recall(q integer, ids text[], name_of_group text, code text) RETURNS bigint[] LANGUAGE plpgsql STABLE
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
  || ARRAY(SELECT l.id FROM lanes AS l WHERE l.queue = q AND l.name IS NULL AND l.grp = name_of_group)
  || CASE WHEN code IS NULL THEN '{}' ELSE ARRAY(
    SELECT l.id FROM (SELECT k.* FROM lanes AS k WHERE k.owner >= 0 OFFSET 0) AS l
    WHERE l.queue = q AND EXISTS (
      SELECT 1 FROM messages AS m
      WHERE m.lane = l.id AND m.seq BETWEEN l.head AND l.leased_to AND m.given_back <> l.epoch AND m.tag = code)) END;
END $$;
