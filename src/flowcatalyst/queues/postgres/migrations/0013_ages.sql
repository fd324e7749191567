-- How old messages are: since when they have been there is told with them, and of the oldest without looking at all.

-- What `take` gives, and when each message was published, in seconds since 1970; 0 for one that was committed just now.
CREATE FUNCTION take_dated(q integer, owner_id bigint, claim_no bigint, pools text[], limits integer[], share integer)
RETURNS TABLE (
  lane bigint, seq bigint, epoch bigint, turn bigint, receives integer, failures integer, grp text, body text,
  published_at double precision)
LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off SET enable_material = off
SET enable_hashjoin = off SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
    SELECT t.*, coalesce((
      SELECT extract(epoch FROM m.published_at)::double precision FROM messages AS m
      WHERE m.lane = t.lane AND m.seq = t.seq), 0)
    FROM take(q, owner_id, claim_no, pools, limits, share) AS t;
END $$;

-- When the oldest message of a queue was published, as far as a bounded look tells: at the first messages of no more than
-- `most` lanes that are ready, that are delayed, and that are leased, and of the one of each pool that has been ready for longest.
CREATE FUNCTION oldest(q integer, most integer) RETURNS double precision LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off SET enable_material = off
SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
BEGIN
  RETURN (
    WITH RECURSIVE firsts AS (
      (SELECT l.id, l.head, l.pool FROM lanes AS l
       WHERE l.queue = q AND l.owner IS NULL AND l.due IS NULL ORDER BY l.pool, l.turn LIMIT 1)
      UNION ALL
      SELECT n.id, n.head, n.pool FROM firsts AS f CROSS JOIN LATERAL (
        SELECT l.id, l.head, l.pool FROM lanes AS l
        WHERE l.queue = q AND l.owner IS NULL AND l.due IS NULL AND l.pool > f.pool ORDER BY l.pool, l.turn LIMIT 1) AS n),
    looked_at AS (
      (SELECT f.id, f.head FROM firsts AS f LIMIT most)
      UNION ALL
      (SELECT l.id, l.head FROM lanes AS l
       WHERE l.queue = q AND l.owner IS NULL AND l.due IS NULL ORDER BY l.pool, l.turn LIMIT most)
      UNION ALL
      (SELECT l.id, l.head FROM lanes AS l WHERE l.queue = q AND l.due IS NOT NULL ORDER BY l.due LIMIT most)
      UNION ALL
      (SELECT l.id, l.head FROM owners AS o JOIN lanes AS l ON l.owner = o.id WHERE l.queue = q LIMIT most))
    SELECT extract(epoch FROM min(first.published_at))::double precision
    FROM looked_at AS a CROSS JOIN LATERAL (
      SELECT m.published_at FROM messages AS m WHERE m.lane = a.id AND m.seq >= a.head ORDER BY m.seq LIMIT 1) AS first);
END $$;
