-- What an owner has leased and did not start can be asked back: lanes are marked, their owner is told, and answers.
-- 0002_settling.sql says what all functions keep to.

ALTER TABLE lanes ADD COLUMN recall_epoch bigint;         -- the lease that somebody wants back, until its owner answered
ALTER TABLE lanes ADD COLUMN recalled_until timestamptz;  -- nothing more is handed out before: somebody acts on what came back
CREATE INDEX recalled_lanes ON lanes (recall_epoch) WHERE recall_epoch IS NOT NULL;

-- Asks the owners of these lanes for what they did not start; which lanes that are, until when nothing more of them is
-- handed out, which no other recall of them has, and whether somebody else keeps some locked.
CREATE FUNCTION recall_lanes(
  ids bigint[], lock_s double precision, OUT asked bigint[], OUT until timestamptz, OUT is_busy boolean)
LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  busy_lanes bigint[] := lock_lanes(ids);
BEGIN
  is_busy := cardinality(busy_lanes) > 0;
  asked := ARRAY(
    SELECT l.id FROM lanes AS l WHERE l.id = ANY (ids) AND l.id <> ALL (busy_lanes) AND l.owner IS NOT NULL ORDER BY l.id);
  SELECT greatest(server_time() + make_interval(secs => lock_s), max(l.recalled_until) + interval '1 microsecond')
  INTO until FROM lanes AS l WHERE l.id = ANY (asked);
  UPDATE lanes AS l SET recall_epoch = l.epoch, recalled_until = until WHERE l.id = ANY (asked);
  IF cardinality(asked) > 0 THEN
    PERFORM pg_notify('flowcatalyst_' || current_schema(), 'recalls');
  END IF;
END $$;

-- Leases of an owner that it was asked for and did not answer yet.
CREATE FUNCTION recalled(owner_id bigint) RETURNS TABLE (lane bigint, epoch bigint) LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
    SELECT r.id, r.epoch FROM (
      SELECT l.id, l.epoch, l.owner, l.recall_epoch FROM lanes AS l WHERE l.recall_epoch IS NOT NULL OFFSET 0) AS r
    WHERE r.owner = owner_id AND r.recall_epoch = r.epoch ORDER BY r.id;
END $$;

-- An owner has nothing more of these leases but what is in flight.
CREATE FUNCTION answer_recalls(lane_ids bigint[], epochs bigint[]) RETURNS void LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  busy_lanes bigint[] := lock_lanes(lane_ids);  -- who keeps them locked is asked for again
BEGIN
  UPDATE lanes AS l SET recall_epoch = NULL FROM unnest(lane_ids, epochs) AS a (lane, epoch)
  WHERE l.id = a.lane AND l.recall_epoch = a.epoch AND l.id <> ALL (busy_lanes);
  PERFORM pg_notify('flowcatalyst_' || current_schema(), 'recalls');
END $$;

-- Whether nobody has these lanes in hand who was asked and did not answer.
CREATE FUNCTION recalls_answered(ids bigint[]) RETURNS boolean LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
  RETURN NOT EXISTS (
    SELECT 1 FROM lanes AS l WHERE l.id = ANY (ids) AND l.owner IS NOT NULL AND l.recall_epoch = l.epoch);
END $$;

-- Hands out of these lanes again, but for those that somebody else asked back since then.
CREATE FUNCTION end_recall(q integer, ids bigint[], until timestamptz) RETURNS void LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  busy_lanes bigint[] := lock_lanes(ids);  -- they are ready by themselves a little later
  ended bigint[];
BEGIN
  WITH free AS (
    UPDATE lanes AS l SET recall_epoch = NULL, recalled_until = NULL
    WHERE l.id = ANY (ids) AND l.id <> ALL (busy_lanes) AND l.recalled_until = until RETURNING l.id)
  SELECT array_agg(f.id) INTO ended FROM free AS f;
  IF ended IS NOT NULL THEN
    PERFORM settle_lanes(ended);
    PERFORM wake(q);
  END IF;
END $$;

-- Lanes that the caller has locked and of which no message is leased become ready or delayed, in the order of the array,
-- and empty ones go. What was given back for longer still locks its lane, and so do a hold and a recall. Of lanes that are
-- leased it is only known again what blocks them.
CREATE OR REPLACE FUNCTION settle_lanes(ids bigint[]) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  moment timestamptz := server_time();
  changed record;
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
          WHEN q.by_first THEN
            CASE WHEN greatest(first.visible_at, l.recalled_until) > moment THEN greatest(first.visible_at, l.recalled_until) END
          WHEN l.delayed > 0 THEN (
            SELECT max(m.visible_at) FROM messages AS m
            WHERE m.lane = l.id AND m.seq BETWEEN l.head AND l.leased_to AND m.visible_at > moment) END AS until
      FROM unnest(ids) WITH ORDINALITY AS asked (id, place) JOIN lanes AS l ON l.id = asked.id
        CROSS JOIN LATERAL (SELECT k.by_first FROM queues AS k WHERE k.id = l.queue OFFSET 0) AS q
        CROSS JOIN LATERAL (
          SELECT m.seq, m.pool, m.visible_at, m.failed_at FROM messages AS m
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
