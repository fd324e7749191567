-- Functions that lease lanes, and those of owners; 0002_settling.sql says what all of them keep to.

-- Makes ready what is due. The pools for which lanes are ready, from `after` on (NULL: from the first), each with the turn of
-- its first lane, and in how many seconds the next lane is due. Goes from one pool to the next, whatever lies between them.
CREATE FUNCTION look(q integer, after text, most integer, OUT pools text[], OUT turns bigint[], OUT due_in_s double precision)
LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off SET enable_material = off
SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
DECLARE
  moment timestamptz := clock_timestamp();
  due_lanes bigint[];
  next_due timestamptz;
  last text := after;
  ready record;
BEGIN
  pools := '{}';
  turns := '{}';
  SELECT min(l.due) INTO next_due FROM lanes AS l WHERE l.queue = q AND l.due IS NOT NULL;
  IF next_due <= moment THEN
    due_lanes := ARRAY(
      SELECT l.id FROM lanes AS l WHERE l.queue = q AND l.due <= moment ORDER BY l.due LIMIT 1000 FOR UPDATE SKIP LOCKED);
    PERFORM settle_lanes(due_lanes);
    SELECT min(l.due) INTO next_due FROM lanes AS l WHERE l.queue = q AND l.due IS NOT NULL;
  END IF;
  due_in_s := extract(epoch FROM next_due - moment);
  IF last IS NULL THEN
    SELECT l.pool, l.turn INTO ready FROM lanes AS l
      WHERE l.queue = q AND l.owner IS NULL AND l.due IS NULL ORDER BY l.pool, l.turn LIMIT 1;
  ELSE
    SELECT l.pool, l.turn INTO ready FROM lanes AS l
      WHERE l.queue = q AND l.owner IS NULL AND l.due IS NULL AND l.pool > last ORDER BY l.pool, l.turn LIMIT 1;
  END IF;
  WHILE ready.pool IS NOT NULL AND cardinality(pools) < most LOOP
    pools := pools || ready.pool;
    turns := turns || ready.turn;
    last := ready.pool;
    SELECT l.pool, l.turn INTO ready FROM lanes AS l
      WHERE l.queue = q AND l.owner IS NULL AND l.due IS NULL AND l.pool > last ORDER BY l.pool, l.turn LIMIT 1;
  END LOOP;
END $$;

-- Leases lanes that are ready, for each pool in turn, up to so many messages: a share of each lane, then more of the same
-- lanes. What is taken of a lane ends before its first message for another pool.
CREATE FUNCTION take(q integer, owner_id bigint, claim_no bigint, pools text[], limits integer[], share integer)
RETURNS TABLE (
  lane bigint, seq bigint, epoch bigint, turn bigint, receives integer, failures integer, grp text, body text)
LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off SET enable_material = off
SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
DECLARE
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
  RETURN QUERY
    WITH got AS MATERIALIZED (
      SELECT l.id AS lane, l.epoch + 1 AS epoch, l.turn, l.grp, m.seq, m.receives + 1 AS receives, m.failures, m.body
      FROM unnest(ids, parts) AS chosen (id, most) JOIN lanes AS l ON l.id = chosen.id
        CROSS JOIN LATERAL (
          SELECT p.* FROM (
            SELECT s.*, bool_and(s.pool = l.pool) OVER (ORDER BY s.seq) AS in_pool FROM (
              SELECT m.seq, m.receives, m.failures, m.pool, m.body FROM messages AS m
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

-- Ends the leases of an owner: all, those in a queue, or those of a claim. How many lanes that were; what somebody else keeps
-- locked stays leased for now.
CREATE FUNCTION release(owner_id bigint, of_queue integer, of_claim bigint) RETURNS integer LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off SET enable_material = off
SET enable_hashjoin = off SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
DECLARE
  ids bigint[];
  busy_lanes bigint[];
  woken integer;
BEGIN
  ids := ARRAY(
    SELECT l.id FROM lanes AS l
    WHERE l.owner = owner_id AND (of_queue IS NULL OR l.queue = of_queue) AND (of_claim IS NULL OR l.claim = of_claim));
  busy_lanes := lock_lanes(ids);
  ids := ARRAY(  -- of these none was settled, and leased by somebody else, before we had it
    SELECT l.id FROM unnest(ids) AS i (id) JOIN lanes AS l ON l.id = i.id
    WHERE l.owner = owner_id AND (of_claim IS NULL OR l.claim = of_claim) AND l.id <> ALL (busy_lanes) ORDER BY l.turn);
  UPDATE messages AS m SET receives = m.receives + 1
  FROM unnest(ids) AS i (id) JOIN lanes AS l ON l.id = i.id
  WHERE m.lane = l.id AND m.seq BETWEEN l.head AND l.leased_to AND m.given_back <> l.epoch;
  UPDATE lanes AS l SET leased = 0 FROM unnest(ids) AS i (id) WHERE l.id = i.id;
  PERFORM settle_lanes(ids);
  FOR woken IN SELECT DISTINCT l.queue FROM unnest(ids) AS i (id) JOIN lanes AS l ON l.id = i.id LOOP
    PERFORM wake(woken);
  END LOOP;
  RETURN cardinality(ids);
END $$;

-- Renews an owner; all owners with their beats. It is gone if it is not among them.
CREATE FUNCTION renew(owner_id bigint, is_waiting boolean) RETURNS TABLE (owner bigint, beats bigint)
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
  UPDATE owners AS o SET beat = o.beat + 1, beat_at = now(), waits = is_waiting WHERE o.id = owner_id;
  RETURN QUERY SELECT o.id, o.beat FROM owners AS o ORDER BY o.id;
END $$;

-- Ends owners that still have these beats (NULL: whichever) and all of their leases; waits for their takes under way. An owner
-- of whose lanes somebody else keeps one locked can do nothing any more, but stays until the next try. How many lanes are free.
CREATE FUNCTION forget(owner_ids bigint[], last_beats bigint[]) RETURNS integer LANGUAGE plpgsql
SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
  gone bigint;
  lanes_freed integer := 0;
BEGIN
  FOR gone IN
    SELECT o.id FROM owners AS o JOIN unnest(owner_ids, last_beats) AS a (id, beat)
      ON o.id = a.id AND (a.beat IS NULL OR o.beat = a.beat) ORDER BY o.id FOR UPDATE OF o
  LOOP
    UPDATE owners AS o SET void_to = 9223372036854775807 WHERE o.id = gone;
    lanes_freed := lanes_freed + release(gone, NULL, NULL);
    DELETE FROM owners AS o WHERE o.id = gone AND NOT EXISTS (SELECT 1 FROM lanes AS l WHERE l.owner = gone);
  END LOOP;
  RETURN lanes_freed;
END $$;

-- Ends the leases of a claim of which nobody knows whether it came to any: it never will from now on. How many are left.
CREATE FUNCTION void(owner_id bigint, claim_no bigint) RETURNS integer LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
  PERFORM 1 FROM owners AS o WHERE o.id = owner_id FOR UPDATE;  -- waits for takes under way
  UPDATE owners AS o SET void_to = greatest(o.void_to, claim_no) WHERE o.id = owner_id;
  PERFORM release(owner_id, NULL, claim_no);
  RETURN (SELECT count(*) FROM lanes AS l WHERE l.owner = owner_id AND l.claim = claim_no);
END $$;

CREATE FUNCTION depth(q integer, OUT messages bigint, OUT leased bigint, OUT delayed bigint) LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off SET enable_material = off
SET enable_hashjoin = off SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
DECLARE
  moment timestamptz := clock_timestamp();
BEGIN
  SELECT coalesce(sum(c.messages), 0), coalesce(sum(c.delayed), 0) INTO messages, delayed FROM counts AS c WHERE c.queue = q;
  SELECT coalesce(sum(l.leased), 0) INTO leased FROM owners AS o JOIN lanes AS l ON l.owner = o.id WHERE l.queue = q;
  -- Lanes that are due wait for the next look to make them ready.
  delayed := delayed - (
    SELECT coalesce(sum(d.delayed), 0) FROM (
      SELECT l.delayed FROM lanes AS l WHERE l.queue = q AND l.due <= moment LIMIT 10000) AS d);
END $$;

-- How many messages are in lanes that are ready and whose first message names this pool, up to `most`.
CREATE FUNCTION waiting_for(q integer, pool_code text, most bigint) RETURNS bigint LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
  waiting bigint := 0;
  ready record;
BEGIN
  FOR ready IN
    SELECT l.messages FROM lanes AS l
    WHERE l.queue = q AND l.pool = pool_code AND l.owner IS NULL AND l.due IS NULL ORDER BY l.turn
  LOOP
    waiting := waiting + ready.messages;
    EXIT WHEN waiting >= most;
  END LOOP;
  RETURN least(waiting, most);
END $$;
