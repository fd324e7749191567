-- Functions that append to lanes; 0002_settling.sql says what all of them keep to.

-- Append messages, in order. `places` says where in their lanes they go, NULL at the end; what comes to stand inside a
-- lease is no part of it. Repeated deduplication ids of the last five minutes are left out.
CREATE FUNCTION publish(q integer, groups text[], pools text[], bodies text[], ids text[], places bigint[])
RETURNS TABLE (seq bigint, is_duplicate boolean) LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off SET enable_material = off
SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
DECLARE
  moment timestamptz := clock_timestamp();
  given bigint[] := array_fill(0::bigint, ARRAY[cardinality(bodies)]);  -- place of each message; of a duplicate its first one's
  is_new boolean[] := array_fill(true, ARRAY[cardinality(bodies)]);
  known record;
  new_places bigint[];
  own_lanes bigint[];  -- for messages without a group
BEGIN
  IF ids IS NOT NULL THEN
    DELETE FROM deduplication AS d WHERE d.ctid = ANY (ARRAY(
      SELECT old.ctid FROM deduplication AS old WHERE old.expires_at <= moment
      ORDER BY old.expires_at LIMIT 200 FOR UPDATE SKIP LOCKED));
    FOR known IN
      WITH asked AS (
        SELECT DISTINCT ON (a.id COLLATE "C") a.id, a.place FROM unnest(ids) WITH ORDINALITY AS a (id, place)
        WHERE a.id IS NOT NULL ORDER BY a.id COLLATE "C", a.place),
      added AS (
        INSERT INTO deduplication AS d (queue, id, seq, expires_at)
        SELECT q, asked.id, 0, moment + interval '5 minutes' FROM asked
        ON CONFLICT ON CONSTRAINT deduplication_pkey DO UPDATE SET
          seq = CASE WHEN d.expires_at <= moment THEN 0 ELSE d.seq END,
          expires_at = CASE WHEN d.expires_at <= moment THEN excluded.expires_at ELSE d.expires_at END
        RETURNING d.id, d.seq)
      SELECT a.place, added.seq AS first_seq, a.place = asked.place AND added.seq = 0 AS is_first
      FROM unnest(ids) WITH ORDINALITY AS a (id, place) JOIN added USING (id) JOIN asked USING (id)
    LOOP
      is_new[known.place] := known.is_first;
      given[known.place] := known.first_seq;
    END LOOP;
  END IF;

  INSERT INTO lanes AS l (id, queue, name, grp, pool, turn, messages, head)
  SELECT numbered.number, q, numbered.grp, numbered.grp, numbered.pool, numbered.number, numbered.messages, 0
  FROM (
    SELECT nextval('numbers') AS number, g.* FROM (
      SELECT m.grp COLLATE "C" AS grp, count(*) AS messages, (array_agg(m.pool ORDER BY m.place))[1] AS pool
      FROM unnest(groups, pools, is_new) WITH ORDINALITY AS m (grp, pool, is_new, place)
      WHERE m.grp IS NOT NULL AND m.is_new GROUP BY 1 ORDER BY 1) AS g) AS numbered
  ON CONFLICT (queue, name) WHERE name IS NOT NULL DO UPDATE SET messages = l.messages + excluded.messages;

  -- Now that the lanes are ours: who publishes to one of them next gets higher numbers.
  new_places := coalesce(places, ARRAY(SELECT nextval('numbers') FROM generate_series(1, cardinality(bodies))));

  own_lanes := CASE WHEN places IS NULL THEN new_places
    ELSE ARRAY(SELECT nextval('numbers') FROM generate_series(1, cardinality(bodies))) END;

  INSERT INTO lanes (id, queue, pool, turn, messages, head)
  SELECT m.own_lane, q, m.pool, m.own_lane, 1, m.seq
  FROM unnest(groups, pools, new_places, own_lanes, is_new) AS m (grp, pool, seq, own_lane, is_new)
  WHERE m.grp IS NULL AND m.is_new;
  INSERT INTO messages (lane, seq, pool, body, given_back)
  SELECT coalesce(l.id, m.own_lane), m.seq, m.pool, m.body, CASE WHEN m.seq <= l.leased_to THEN l.epoch ELSE 0 END
  FROM unnest(groups, pools, bodies, new_places, own_lanes, is_new) AS m (grp, pool, body, seq, own_lane, is_new)
    LEFT JOIN LATERAL (
      SELECT k.id, k.leased_to, k.epoch FROM lanes AS k WHERE k.queue = q AND k.name = m.grp OFFSET 0) AS l ON true
  WHERE m.is_new;

  IF places IS NOT NULL THEN  -- what stands first may be another one now
    FOR known IN SELECT m.grp, min(m.seq) AS head FROM unnest(groups, places) AS m (grp, seq) GROUP BY m.grp LOOP
      UPDATE lanes AS l SET head = least(l.head, known.head) WHERE l.queue = q AND l.name = known.grp;
      UPDATE lanes AS l SET pool = (
        SELECT m.pool FROM messages AS m WHERE m.lane = l.id AND m.seq >= l.head ORDER BY m.seq LIMIT 1)
      WHERE l.queue = q AND l.name = known.grp AND l.owner IS NULL;
    END LOOP;
  END IF;
  IF ids IS NOT NULL THEN
    FOR known IN
      SELECT m.id, m.seq FROM unnest(ids, new_places, is_new) AS m (id, seq, is_new) WHERE m.id IS NOT NULL AND m.is_new
    LOOP
      UPDATE deduplication AS d SET seq = known.seq WHERE d.queue = q AND d.id = known.id;
    END LOOP;
  END IF;
  PERFORM count_up(q, (SELECT count(*) FROM unnest(is_new) AS one WHERE one), 0);
  PERFORM wake(q);
  RETURN QUERY
    SELECT CASE WHEN m.is_new THEN m.new_seq WHEN m.old_seq > 0 THEN m.old_seq ELSE d.seq END, NOT m.is_new
    FROM unnest(new_places, given, is_new, coalesce(ids, array_fill(NULL::text, ARRAY[cardinality(bodies)])))
      WITH ORDINALITY AS m (new_seq, old_seq, is_new, id, place)
      LEFT JOIN LATERAL (SELECT k.seq FROM deduplication AS k WHERE k.queue = q AND k.id = m.id OFFSET 0) AS d
        ON NOT m.is_new
    ORDER BY m.place;
END $$;

-- For applications: publish one message inside a transaction of their own. Its group is locked until they commit.
CREATE FUNCTION send(queue_name text, body text, message_group text DEFAULT NULL, deduplication_id text DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
  pool text := '';
  sent bigint;
BEGIN
  BEGIN
    pool := left(coalesce(nullif(trim(body::jsonb ->> 'poolCode'), ''), 'DEFAULT-POOL'), 256);
  EXCEPTION WHEN data_exception THEN  -- no JSON: the router says what is wrong with it
    pool := '';
  END;
  SELECT p.seq INTO sent FROM publish(
    open_queue(queue_name), ARRAY[message_group], ARRAY[pool], ARRAY[body],
    CASE WHEN deduplication_id IS NOT NULL THEN ARRAY[deduplication_id] END, NULL) AS p;
  RETURN sent;
END $$;
