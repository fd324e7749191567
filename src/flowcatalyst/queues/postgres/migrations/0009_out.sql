-- A message may be out: somebody else was told of it, and asks for it when its turn has come there. Who was told is not known
-- here; that one was is. 0002_settling.sql says what all functions keep to.
--
-- It is leased first, alone, as the first of its lane (`take_firsts`). When it was told of, its lease ends and its lane stays
-- locked for a while (`hand_over`). Who asks with the number of that lease gets it (`claim_out`), before or after that, once:
-- the number is another one then, as it is after whatever else is done to the lane's lease.

ALTER TABLE lanes ADD COLUMN out_epoch bigint;       -- the lease in which the message at `leased_to` was, or is being, told of
ALTER TABLE lanes ADD COLUMN out_until timestamptz;  -- it was handed over: so long nothing of the lane starts, unless it is claimed
CREATE INDEX out_lanes ON lanes (queue, pool, out_until) WHERE out_until IS NOT NULL;

-- Lanes that the caller has locked and of which no message is leased become ready or delayed, in the order of the array,
-- and empty ones go. What was given back for longer still locks its lane, and so do a hold, a recall and a pause, and
-- a message that is out. Of lanes that are leased it is only known again what blocks them.
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

-- Leases the first message of lanes that are ready, for each pool in turn, as long as no more than so many of it are out.
CREATE FUNCTION take_firsts(q integer, owner_id bigint, claim_no bigint, pools text[], limits integer[])
RETURNS TABLE (lane bigint, seq bigint, epoch bigint, receives integer, failures integer, grp text)
LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off SET enable_material = off
SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
DECLARE
  moment timestamptz := server_time();
  pauses_any boolean;
  ids bigint[] := '{}';
  are_out bigint;
  brought bigint;
BEGIN
  PERFORM check_claim(owner_id, claim_no);
  FOR i IN 1..cardinality(pools) LOOP
    SELECT count(*) INTO are_out FROM (
      SELECT 1 FROM lanes AS l
      WHERE l.queue = q AND l.pool = pools[i] AND l.out_until > moment AND l.out_epoch = l.epoch LIMIT limits[i]) AS one;
    ids := ids || ARRAY(
      SELECT l.id FROM lanes AS l
      WHERE l.queue = q AND l.pool = pools[i] AND l.owner IS NULL AND l.due IS NULL
      ORDER BY l.turn LIMIT limits[i] - are_out FOR UPDATE SKIP LOCKED);
  END LOOP;
  IF cardinality(ids) = 0 THEN
    RETURN;
  END IF;
  pauses_any := EXISTS (SELECT 1 FROM paused_tags AS p WHERE p.queue = q);  -- now that the lanes are locked
  RETURN QUERY
    WITH got AS MATERIALIZED (
      SELECT l.id AS lane, l.epoch + 1 AS epoch, l.grp, m.seq, m.receives + 1 AS receives, m.failures, chosen.place
      FROM unnest(ids) WITH ORDINALITY AS chosen (id, place) JOIN lanes AS l ON l.id = chosen.id
        CROSS JOIN LATERAL (
          SELECT k.seq, k.receives, k.failures, k.pool, k.visible_at, k.tag FROM messages AS k
          WHERE k.lane = l.id AND k.seq >= l.head ORDER BY k.seq LIMIT 1) AS m
      WHERE m.pool = l.pool AND coalesce(m.visible_at <= moment, true) AND NOT (
        pauses_any AND EXISTS (SELECT 1 FROM paused_tags AS t WHERE t.queue = q AND t.tag = m.tag))),
    leased AS (
      UPDATE lanes AS l SET epoch = g.epoch, leased_to = g.seq, leased = 1, owner = owner_id, claim = claim_no,
        out_epoch = g.epoch, out_until = NULL
      FROM got AS g WHERE l.id = g.lane)
    SELECT g.lane, g.seq, g.epoch, g.receives, g.failures, g.grp FROM got AS g ORDER BY g.place;
  GET DIAGNOSTICS brought = ROW_COUNT;
  IF brought < cardinality(ids) THEN
    PERFORM settle_lanes(ids);  -- a lane that gave nothing is mended; leased ones stay as they are
  END IF;
END $$;

-- Fails unless an owner lives, and its claim may lease something. The owner is not deleted before the transaction ends.
CREATE FUNCTION check_claim(owner_id bigint, claim_no bigint) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  last_void bigint;
BEGIN
  SELECT o.void_to INTO last_void FROM owners AS o WHERE o.id = owner_id FOR KEY SHARE;
  IF last_void IS NULL THEN
    RAISE EXCEPTION 'owner % is gone', owner_id USING ERRCODE = 'FC001';
  ELSIF last_void >= claim_no THEN
    RAISE EXCEPTION 'claim % of owner % is void', claim_no, owner_id USING ERRCODE = 'FC002';
  END IF;
END $$;

-- Messages that `take_firsts` gave were told of: their leases end, and their lanes stay locked for so long. The positions of
-- those that were still ours and unclaimed, and of those whose lanes somebody else keeps locked.
CREATE FUNCTION hand_over(
  lane_ids bigint[], epochs bigint[], owner_id bigint, seconds double precision, OUT handed integer[], OUT busy integer[])
LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  busy_lanes bigint[] := lock_lanes(lane_ids);
  ids bigint[];
BEGIN
  busy := ARRAY(
    SELECT a.place FROM unnest(lane_ids) WITH ORDINALITY AS a (lane, place) WHERE a.lane = ANY (busy_lanes));
  WITH over AS (
    UPDATE lanes AS l SET leased = 0, out_until = server_time() + make_interval(secs => seconds)
    FROM unnest(lane_ids, epochs) WITH ORDINALITY AS a (lane, epoch, place)
    WHERE l.id = a.lane AND l.epoch = a.epoch AND l.out_epoch = a.epoch AND l.owner = owner_id AND l.id <> ALL (busy_lanes)
    RETURNING l.id, a.place)
  SELECT coalesce(array_agg(o.place), '{}'), coalesce(array_agg(o.id), '{}') INTO handed, ids FROM over AS o;
  PERFORM settle_lanes(ids);
END $$;

-- Leases a message that is out, or is just being told of, to somebody else: 'claimed', or 'stale', 'waits' if it may not start
-- now, 'busy' if somebody keeps its lane locked.
CREATE FUNCTION claim_out(
  owner_id bigint, claim_no bigint, in_lane bigint, place bigint, of_epoch bigint,
  OUT outcome text, OUT receives integer, OUT failures integer, OUT grp text)
LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  moment timestamptz := server_time();
  l lanes;
  m messages;
BEGIN
  PERFORM check_claim(owner_id, claim_no);
  IF cardinality(lock_lanes(ARRAY[in_lane])) > 0 THEN
    outcome := 'busy';
    RETURN;
  END IF;
  SELECT k.* INTO l FROM lanes AS k WHERE k.id = in_lane;
  SELECT k.* INTO m FROM messages AS k WHERE k.lane = in_lane AND k.seq = place;
  IF m.seq IS NULL OR l.epoch <> of_epoch OR l.out_epoch IS DISTINCT FROM of_epoch OR l.leased_to <> place
    OR NOT (l.owner IS NOT NULL OR coalesce(l.out_until > moment, false)) THEN
    outcome := 'stale';
    RETURN;
  END IF;
  IF coalesce(l.recalled_until > moment, false) OR EXISTS (SELECT 1 FROM holds AS h WHERE h.queue = l.queue AND h.grp = l.grp)
    OR EXISTS (SELECT 1 FROM paused_tags AS p WHERE p.queue = l.queue AND p.tag = m.tag) THEN
    outcome := 'waits';
    RETURN;
  END IF;
  -- What came before it meanwhile is no part of the lease.
  UPDATE messages AS k SET given_back = of_epoch + 1 WHERE k.lane = in_lane AND k.seq >= l.head AND k.seq < place;
  UPDATE lanes AS k SET epoch = of_epoch + 1, leased = 1, delayed = 0, owner = owner_id, claim = claim_no, due = NULL,
    out_epoch = NULL, out_until = NULL
  WHERE k.id = in_lane;
  PERFORM count_up(l.queue, 0, -l.delayed);
  outcome := 'claimed';
  receives := m.receives + 1;
  failures := m.failures;
  grp := l.grp;
END $$;
