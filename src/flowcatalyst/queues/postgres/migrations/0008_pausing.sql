-- Messages may bear a tag, and tags may be paused: what bears one stays in its lane, in its place, and is handed out to nobody.
-- 0002_settling.sql says what all functions keep to.
--
-- A lane is locked while its first message is paused. Who settles a lane sees that, if he began to after the pause; lanes
-- that were ready before are for who pauses to settle. `take` looks at what it takes, so that nothing slips through.

ALTER TABLE messages ADD COLUMN tag text COLLATE "C";

CREATE TABLE paused_tags (
  queue integer NOT NULL,
  tag text COLLATE "C" NOT NULL,
  PRIMARY KEY (queue, tag)
);

-- Lanes that the caller has locked and of which no message is leased become ready or delayed, in the order of the array,
-- and empty ones go. What was given back for longer still locks its lane, and so do a hold, a recall and a pause. Of lanes
-- that are leased it is only known again what blocks them.
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
            CASE WHEN greatest(first.visible_at, l.recalled_until) > moment THEN greatest(first.visible_at, l.recalled_until) END
          WHEN l.delayed > 0 THEN (
            SELECT max(m.visible_at) FROM messages AS m
            WHERE m.lane = l.id AND m.seq BETWEEN l.head AND l.leased_to AND m.visible_at > moment) END AS until
      FROM unnest(ids) WITH ORDINALITY AS asked (id, place) JOIN lanes AS l ON l.id = asked.id
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

-- Show messages after a delay, which may be infinite, and remember how often each has failed, and since when (`at`). The
-- positions of those that were held, and of those whose lanes somebody else keeps locked.
-- With `unlock` each gets a lane of its own and holds up nobody but itself: these lanes, in the order of `held`.
CREATE OR REPLACE FUNCTION nack(
  lane_ids bigint[], seqs bigint[], epochs bigint[], failed integer[], delay_s double precision, unlock boolean,
  at timestamptz DEFAULT server_time(), OUT held integer[], OUT busy integer[], OUT own_lanes bigint[])
LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off SET enable_material = off
SET enable_hashjoin = off SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
DECLARE
  shown_at timestamptz := CASE
    WHEN delay_s = 'infinity' THEN 'infinity' WHEN delay_s > 0 THEN server_time() + make_interval(secs => delay_s) END;
  is_delayed integer := CASE WHEN delay_s > 0 THEN 1 ELSE 0 END;
  to_settle bigint[];
  busy_lanes bigint[] := lock_lanes(lane_ids);
  q integer;  -- of all of them
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
    UPDATE messages AS m SET visible_at = shown_at, given_back = f.epoch, receives = m.receives + 1, failures = f.failures,
      failed_at = CASE WHEN f.failures > m.failures OR delay_s = 'infinity' THEN coalesce(m.failed_at, at)
        ELSE m.failed_at END
    FROM found AS f WHERE m.ctid = f.ctid
    RETURNING f.lane, f.place, f.was_leased),
  by_lane AS (
    SELECT b.lane, count(*) AS messages, count(*) FILTER (WHERE b.was_leased) AS leased, min(b.place) AS place
    FROM back AS b GROUP BY b.lane),
  changed AS (
    UPDATE lanes AS l SET leased = l.leased - b.leased,
      delayed = l.delayed + CASE WHEN unlock THEN 0 ELSE is_delayed * b.messages END
    FROM by_lane AS b WHERE l.id = b.lane
    RETURNING l.id, l.queue, b.place)
  SELECT (SELECT array_agg(b.place) FROM back AS b), (SELECT min(c.queue) FROM changed AS c),
    (SELECT array_agg(c.id ORDER BY c.place) FROM changed AS c)
  INTO held, q, to_settle;
  held := coalesce(held, '{}');
  own_lanes := '{}';
  PERFORM count_up(q, 0, is_delayed * cardinality(held));
  IF unlock AND cardinality(held) > 0 THEN
    own_lanes := ARRAY(SELECT nextval('numbers') FROM unnest(held));
    WITH leaving AS MATERIALIZED (
      SELECT h.own_lane, l.id AS lane, l.queue, l.grp, m.ctid, m.seq, m.pool
      FROM unnest(held, own_lanes) AS h (place, own_lane) JOIN lanes AS l ON l.id = lane_ids[h.place]
        CROSS JOIN LATERAL (
          SELECT k.ctid, k.seq, k.pool FROM messages AS k WHERE k.lane = l.id AND k.seq = seqs[h.place] OFFSET 0) AS m),
    moved AS (UPDATE messages AS m SET lane = v.own_lane, given_back = 0 FROM leaving AS v WHERE m.ctid = v.ctid),
    left_behind AS (
      UPDATE lanes AS l SET messages = l.messages - b.messages
      FROM (SELECT v.lane, count(*) AS messages FROM leaving AS v GROUP BY v.lane) AS b WHERE l.id = b.lane)
    INSERT INTO lanes (id, queue, grp, pool, turn, messages, head, leased_to, due, delayed)
    SELECT v.own_lane, v.queue, v.grp, v.pool, v.own_lane, 1, v.seq, v.seq, shown_at, is_delayed FROM leaving AS v;
    IF shown_at IS NULL AND (
      EXISTS (SELECT 1 FROM holds AS h WHERE h.queue = q) OR EXISTS (SELECT 1 FROM paused_tags AS p WHERE p.queue = q)) THEN
      PERFORM settle_lanes(own_lanes);
    END IF;
  END IF;
  IF to_settle IS NOT NULL THEN
    PERFORM settle_lanes(to_settle);
  END IF;
END $$;

-- Leases lanes that are ready, for each pool in turn, up to so many messages: a share of each lane, then more of the same
-- lanes. What is taken of a lane ends before its first message for another pool, or that has to wait or is paused.
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
      SELECT l.id, l.messages FROM lanes AS l
      WHERE l.queue = q AND l.pool = pools[i] AND l.owner IS NULL AND l.due IS NULL
      ORDER BY l.turn FOR UPDATE SKIP LOCKED
    LOOP
      part := least(greatest(ready.messages, 1), share, wanted);
      ids := ids || ready.id;
      held := held || ready.messages;
      parts := parts || part;
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
  IF brought < (SELECT sum(one) FROM unnest(parts) AS one) THEN
    PERFORM settle_lanes(ids);  -- a lane that gave nothing is mended; leased ones stay as they are
  END IF;
END $$;

-- Waits for all takes under way: what they lease is seen by the next statement.
CREATE FUNCTION wait_for_takes() RETURNS void LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
  PERFORM 1 FROM owners AS o ORDER BY o.id FOR UPDATE;
END $$;
