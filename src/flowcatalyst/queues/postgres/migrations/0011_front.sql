-- A message may be put in front of its group. 0002_settling.sql says what all functions keep to.
--
-- Its place is below zero and lower than any before, so none is used twice. What waits behind it did not make it fail: it keeps
-- its delay, and locks the lane again when what is in front has gone. Jobs, whose places are above zero, have no front.

-- Lanes that the caller has locked and of which no message is leased become ready or delayed, in the order of the array,
-- and empty ones go. What was given back for longer still locks its lane, and so do a hold, a recall and a pause, and
-- a message that is out. What was put in front waits for its own delay only. Of lanes that are leased it is only known
-- again what blocks them.
CREATE OR REPLACE FUNCTION settle_lanes(ids bigint[]) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  moment timestamptz := server_time();
  changed record;
  pauses_any boolean := EXISTS (SELECT 1 FROM paused_tags);
BEGIN
  FOR changed IN
    WITH gone AS (
      DELETE FROM lanes AS l WHERE l.id = ANY (ids) AND l.leased = 0
        AND NOT EXISTS (SELECT 1 FROM messages AS m WHERE m.lane = l.id AND m.seq >= l.head)
      RETURNING l.queue, l.delayed)
    SELECT g.queue, sum(g.delayed) AS delayed FROM gone AS g WHERE g.delayed <> 0 GROUP BY g.queue
  LOOP
    PERFORM count_up(changed.queue, 0, -changed.delayed::bigint);
  END LOOP;
  FOR changed IN
    WITH free AS (
      SELECT l.id, l.owner, l.due, l.turn, l.delayed, first.seq, first.pool, first.failed_at,
        CASE
          WHEN EXISTS (SELECT 1 FROM holds AS h WHERE h.queue = l.queue AND h.grp = l.grp) THEN 'infinity'
          WHEN pauses_any AND EXISTS (SELECT 1 FROM paused_tags AS p WHERE p.queue = l.queue AND p.tag = first.tag) THEN 'infinity'
          WHEN q.by_first THEN
            CASE WHEN greatest(first.visible_at, l.recalled_until, o.until) > moment
              THEN greatest(first.visible_at, l.recalled_until, o.until) END
          WHEN first.seq < 0 THEN CASE WHEN first.visible_at > moment THEN first.visible_at END
          WHEN l.delayed > 0 THEN (
            SELECT max(m.visible_at) FROM messages AS m
            WHERE m.lane = l.id AND m.seq BETWEEN l.head AND l.leased_to AND m.visible_at > moment) END AS until
      FROM unnest(ids) WITH ORDINALITY AS asked (id, place) JOIN lanes AS l ON l.id = asked.id
        CROSS JOIN LATERAL (
          SELECT CASE WHEN l.out_epoch = l.epoch AND EXISTS (
            SELECT 1 FROM messages AS k WHERE k.lane = l.id AND k.seq = l.leased_to) THEN l.out_until END AS until) AS o
        CROSS JOIN LATERAL (SELECT k.by_first FROM queues AS k WHERE k.id = l.queue OFFSET 0) AS q
        CROSS JOIN LATERAL (
          SELECT m.seq, m.pool, m.visible_at, m.failed_at, m.tag FROM messages AS m
          WHERE m.lane = l.id AND m.seq >= l.head ORDER BY m.seq LIMIT 1) AS first
      WHERE l.leased = 0
      ORDER BY asked.place),
    turned AS (
      SELECT free.*, CASE WHEN until IS NOT NULL THEN greatest(delayed, 1) ELSE 0 END AS new_delayed,
        CASE WHEN owner IS NULL AND due IS NULL THEN turn ELSE nextval('numbers') END AS new_turn
      FROM free),
    settled AS (
      UPDATE lanes AS l SET owner = NULL, claim = NULL, turn = t.new_turn, head = t.seq, pool = t.pool, due = t.until,
        delayed = t.new_delayed, blocked_at = t.failed_at
      FROM turned AS t WHERE l.id = t.id
      RETURNING l.queue, t.new_delayed - t.delayed AS more_delayed)
    SELECT s.queue, sum(s.more_delayed) AS more_delayed FROM settled AS s GROUP BY s.queue
  LOOP
    PERFORM count_up(changed.queue, 0, changed.more_delayed::bigint);
  END LOOP;
  UPDATE lanes AS l SET blocked_at = b.failed_at FROM (
    SELECT k.id, first.failed_at FROM unnest(ids) AS i (id) JOIN lanes AS k ON k.id = i.id
      CROSS JOIN LATERAL (
        SELECT m.failed_at FROM messages AS m WHERE m.lane = k.id AND m.seq >= k.head ORDER BY m.seq LIMIT 1) AS first
    WHERE k.leased > 0 AND k.name IS NOT NULL AND k.blocked_at IS DISTINCT FROM first.failed_at) AS b
  WHERE l.id = b.id;
END $$;

-- Puts one message before all that its group holds. It fails if somebody has messages of the group leased.
CREATE FUNCTION publish_in_front(
  q integer, message_group text, pool_code text, message text, deduplication_id text, OUT given bigint, OUT is_repeated boolean)
LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  found_lane bigint;
  holder bigint;
BEGIN
  SELECT p.seq, p.is_duplicate INTO given, is_repeated FROM publish(
    q, ARRAY[message_group], ARRAY[pool_code], ARRAY[message],
    CASE WHEN deduplication_id IS NOT NULL THEN ARRAY[deduplication_id] END, ARRAY[-nextval('numbers')]) AS p;
  IF NOT is_repeated THEN
    SELECT l.id, l.owner INTO found_lane, holder FROM lanes AS l  -- ours since it was published to
    WHERE l.queue = q AND l.name = message_group;
    IF holder IS NOT NULL THEN
      RAISE EXCEPTION 'owner % has messages of the group', holder USING ERRCODE = 'FC003';
    END IF;
    PERFORM settle_lanes(ARRAY[found_lane]);
  END IF;
END $$;

-- Of lanes that were just leased: what their older leases reached, and this one does not, is no part of it, as if it had been
-- given back from there. It counts as delayed as long as it is, and locks its lane again later.
CREATE FUNCTION set_aside(q integer, ids bigint[], reaches bigint[]) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  moment timestamptz := server_time();
  more_delayed bigint;
BEGIN
  WITH aside AS (
    UPDATE messages AS m SET given_back = l.epoch, visible_at = CASE WHEN m.visible_at > moment THEN m.visible_at END
    FROM unnest(ids, reaches) AS a (id, reach) JOIN lanes AS l ON l.id = a.id
    WHERE l.leased > 0 AND m.lane = l.id AND m.seq > l.leased_to AND m.seq <= a.reach
    RETURNING m.lane, m.visible_at),
  by_lane AS (SELECT a.lane, count(a.visible_at) AS delayed FROM aside AS a GROUP BY a.lane),
  reached AS (
    UPDATE lanes AS l SET leased_to = a.reach, delayed = l.delayed + b.delayed
    FROM by_lane AS b JOIN unnest(ids, reaches) AS a (id, reach) ON a.id = b.lane WHERE l.id = b.lane)
  SELECT sum(b.delayed) INTO more_delayed FROM by_lane AS b;
  PERFORM count_up(q, 0, coalesce(more_delayed, 0));
END $$;

-- Leases lanes that are ready, for each pool in turn, up to so many messages: a share of each lane, then more of the same
-- lanes. What is taken of a lane ends before its first message for another pool, or that has to wait or is paused. Where that
-- begins with what was put in front, the rest of what older leases reached is set aside.
CREATE OR REPLACE FUNCTION take(q integer, owner_id bigint, claim_no bigint, pools text[], limits integer[], share integer)
RETURNS TABLE (
  lane bigint, seq bigint, epoch bigint, turn bigint, receives integer, failures integer, grp text, body text)
LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off SET enable_material = off
SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
DECLARE
  moment timestamptz := server_time();
  pauses_any boolean;
  ids bigint[] := '{}';
  held bigint[] := '{}';  -- messages in these lanes
  parts bigint[] := '{}';  -- how many to take of each
  fronts bigint[] := '{}';  -- lanes that begin with what was put in front
  reaches bigint[] := '{}';  -- how far their older leases reached
  last_void bigint;
  first_of_pool integer;
  wanted bigint;
  part bigint;
  brought bigint;
  ready record;
BEGIN
  SELECT o.void_to INTO last_void FROM owners AS o WHERE o.id = owner_id FOR KEY SHARE;  -- it is not deleted meanwhile
  IF last_void IS NULL THEN
    RAISE EXCEPTION 'owner % is gone', owner_id USING ERRCODE = 'FC001';
  ELSIF last_void >= claim_no THEN
    RAISE EXCEPTION 'claim % of owner % is void', claim_no, owner_id USING ERRCODE = 'FC002';
  END IF;
  FOR i IN 1..cardinality(pools) LOOP
    wanted := limits[i];
    first_of_pool := cardinality(ids) + 1;
    FOR ready IN
      SELECT l.id, l.messages, l.head, l.leased_to FROM lanes AS l
      WHERE l.queue = q AND l.pool = pools[i] AND l.owner IS NULL AND l.due IS NULL
      ORDER BY l.turn FOR UPDATE SKIP LOCKED
    LOOP
      part := least(greatest(ready.messages, 1), share, wanted);
      ids := ids || ready.id;
      held := held || ready.messages;
      parts := parts || part;
      IF ready.head < 0 THEN
        fronts := fronts || ready.id;
        reaches := reaches || ready.leased_to;
      END IF;
      wanted := wanted - part;
      EXIT WHEN wanted <= 0;
    END LOOP;
    FOR j IN first_of_pool..cardinality(ids) LOOP
      EXIT WHEN wanted <= 0;
      part := least(greatest(held[j] - parts[j], 0), wanted);
      parts[j] := parts[j] + part;
      wanted := wanted - part;
    END LOOP;
  END LOOP;
  IF cardinality(ids) = 0 THEN
    RETURN;
  END IF;
  pauses_any := EXISTS (SELECT 1 FROM paused_tags AS p WHERE p.queue = q);  -- now that the lanes are locked
  RETURN QUERY
    WITH got AS MATERIALIZED (
      SELECT l.id AS lane, l.epoch + 1 AS epoch, l.turn, l.grp, m.seq, m.receives + 1 AS receives, m.failures, m.body
      FROM unnest(ids, parts) AS chosen (id, most) JOIN lanes AS l ON l.id = chosen.id
        CROSS JOIN LATERAL (
          SELECT p.* FROM (
            SELECT s.*, bool_and(s.pool = l.pool AND coalesce(s.visible_at <= moment, true) AND NOT (
                pauses_any AND EXISTS (SELECT 1 FROM paused_tags AS t WHERE t.queue = q AND t.tag = s.tag)))
              OVER (ORDER BY s.seq) AS in_pool FROM (
              SELECT m.seq, m.receives, m.failures, m.pool, m.visible_at, m.tag, m.body FROM messages AS m
              WHERE m.lane = l.id AND m.seq >= l.head ORDER BY m.seq LIMIT chosen.most) AS s) AS p
          WHERE p.in_pool) AS m),
    lasts AS (SELECT g.lane, max(g.seq) AS seq, count(*) AS messages FROM got AS g GROUP BY g.lane),
    leased AS (
      UPDATE lanes AS l SET epoch = l.epoch + 1, leased_to = lasts.seq, leased = lasts.messages, owner = owner_id,
        claim = claim_no
      FROM lasts WHERE l.id = lasts.lane)
    SELECT g.lane, g.seq, g.epoch, g.turn, g.receives, g.failures, g.grp, g.body FROM got AS g ORDER BY g.turn, g.seq;
  GET DIAGNOSTICS brought = ROW_COUNT;
  IF cardinality(fronts) > 0 THEN
    PERFORM set_aside(q, fronts, reaches);
  END IF;
  IF brought < (SELECT sum(one) FROM unnest(parts) AS one) THEN
    PERFORM settle_lanes(ids);  -- a lane that gave nothing is mended; leased ones stay as they are
  END IF;
END $$;
