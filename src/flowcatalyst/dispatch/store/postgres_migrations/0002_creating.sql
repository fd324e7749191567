-- How jobs come into lanes; the functions of lanes say what all functions keep to.

-- The number of the job that stands at a place; `flowcatalyst.dispatch.job.position` makes places.
CREATE FUNCTION number_at(place bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS 'SELECT place & 2199023255551';

-- Locks the lanes of groups, which are made if they are not there, for messages that will be put into them. `bounds` are
-- places that those will not stand before; one without a number is of messages with higher numbers than all in the lane.
CREATE FUNCTION lock_groups(q integer, groups text[], pools text[], bounds bigint[]) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
  INSERT INTO lanes AS l (id, queue, name, grp, pool, turn, messages, head)
  SELECT numbered.number, q, numbered.grp, numbered.grp, numbered.pool, numbered.number, numbered.messages, numbered.bound
  FROM (
    SELECT nextval('numbers') AS number, g.* FROM (
      SELECT m.grp COLLATE "C" AS grp, count(*) AS messages, min(m.bound) AS bound,
        (array_agg(m.pool ORDER BY m.bound, m.place))[1] AS pool
      FROM unnest(groups, pools, bounds) WITH ORDINALITY AS m (grp, pool, bound, place)
      WHERE m.grp IS NOT NULL GROUP BY 1 ORDER BY 1) AS g) AS numbered
  ON CONFLICT (queue, name) WHERE name IS NOT NULL DO UPDATE SET
    messages = l.messages + excluded.messages,
    head = CASE
      WHEN excluded.head >> 41 < l.head >> 41 OR (number_at(excluded.head) > 0 AND excluded.head < l.head)
      THEN excluded.head ELSE l.head END;
END $$;

-- Puts messages at their places: into the lanes of their groups, which are locked and have counted them, or, for a NULL,
-- into lanes of their own. The lanes, in order; nothing is done for a place that is NULL.
CREATE FUNCTION fill_lanes(q integer, groups text[], pools text[], places bigint[]) RETURNS bigint[] LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_material = off
SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
DECLARE
  filled bigint[];
  to_settle bigint[];
  holds_any boolean := EXISTS (SELECT 1 FROM holds WHERE queue = q);
BEGIN
  INSERT INTO lanes (id, queue, pool, turn, messages, head)
  SELECT number_at(m.seq), q, m.pool, number_at(m.seq), 1, m.seq
  FROM unnest(groups, pools, places) AS m (grp, pool, seq) WHERE m.grp IS NULL AND m.seq IS NOT NULL;
  WITH coming AS MATERIALIZED (
    SELECT m.*, coalesce(l.id, number_at(m.seq)) AS lane, l.messages, l.head, l.leased_to, l.epoch
    FROM unnest(groups, pools, places) WITH ORDINALITY AS m (grp, pool, seq, position)
      LEFT JOIN LATERAL (
        SELECT k.id, k.messages, k.head, k.leased_to, k.epoch FROM lanes AS k
        WHERE k.queue = q AND k.name = m.grp OFFSET 0) AS l ON true),
  put AS (
    INSERT INTO messages (lane, seq, pool, body, given_back)
    SELECT c.lane, c.seq, c.pool, '', CASE WHEN c.seq <= c.leased_to THEN c.epoch ELSE 0 END  -- inside a lease, but no part of it
    FROM coming AS c WHERE c.seq IS NOT NULL)
  SELECT array_agg(CASE WHEN c.seq IS NOT NULL THEN c.lane END ORDER BY c.position),
    ARRAY(  -- what stands first there is another one now; or the group is held
      SELECT o.lane FROM coming AS o WHERE o.grp IS NOT NULL AND o.seq IS NOT NULL
      GROUP BY o.lane HAVING holds_any OR (min(o.messages) > count(*) AND min(o.head) <= min(o.seq)))
  INTO filled, to_settle FROM coming AS c;
  IF cardinality(to_settle) > 0 THEN
    PERFORM settle_lanes(to_settle);
  END IF;
  PERFORM count_up(q, (SELECT count(m) FROM unnest(places) AS m), 0);
  PERFORM wake(q);
  RETURN filled;
END $$;

-- Makes jobs, in order. The positions of those whose idempotency key was known, and the ids of the first jobs that had it.
-- Their groups are locked until the transaction ends: jobs of a group get their numbers in the order in which they become
-- visible. `delays` are array literals.
CREATE FUNCTION create_jobs(
  q integer, wall double precision, ids text[], kinds text[], codes text[], targets text[], content_types text[],
  headers text[], groups text[], sequences integer[], modes text[], pools text[], timeouts double precision[],
  retries integer[], delays text[], scheduled double precision[], expiry double precision[], keys text[], metadata text[],
  created double precision[], payloads bytea[], marked integer[], marks text[],
  OUT repeated integer[], OUT firsts text[])
LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off SET enable_material = off
SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
DECLARE
  n integer := cardinality(ids);
  is_new boolean[] := array_fill(true, ARRAY[n]);
  numbers bigint[];
  places bigint[];  -- NULL: it does not enter now
  lane_groups text[];
  lane_ids bigint[];
BEGIN
  repeated := '{}';
  firsts := '{}';
  IF keys IS NOT NULL THEN
    WITH asked AS (
      SELECT DISTINCT ON (a.key COLLATE "C") a.key, a.id FROM unnest(keys, ids) WITH ORDINALITY AS a (key, id, place)
      WHERE a.key IS NOT NULL ORDER BY a.key COLLATE "C", a.place),
    added AS (INSERT INTO job_keys (key, id) SELECT asked.key, asked.id FROM asked ON CONFLICT DO NOTHING RETURNING id)
    SELECT array_agg(a.key IS NULL OR k.id IS NOT NULL ORDER BY a.place) INTO is_new
    FROM unnest(keys, ids) WITH ORDINALITY AS a (key, id, place) LEFT JOIN added AS k ON k.id = a.id;
    SELECT coalesce(array_agg(a.place ORDER BY a.place), '{}'), coalesce(array_agg(k.id ORDER BY a.place), '{}')
    INTO repeated, firsts
    FROM unnest(keys, is_new) WITH ORDINALITY AS a (key, is_new, place)
      CROSS JOIN LATERAL (SELECT o.id FROM job_keys AS o WHERE o.key = a.key OFFSET 0) AS k
    WHERE NOT a.is_new;
  END IF;
  SELECT array_agg(CASE WHEN m.mode <> 'IMMEDIATE' THEN m.grp END ORDER BY m.place) INTO lane_groups
  FROM unnest(groups, modes) WITH ORDINALITY AS m (grp, mode, place);
  IF EXISTS (SELECT 1 FROM unnest(lane_groups) AS one WHERE one IS NOT NULL) THEN
    PERFORM lock_groups(q, array_agg(m.grp ORDER BY m.place), array_agg(m.pool ORDER BY m.place),
        array_agg(m.sequence::bigint << 41 ORDER BY m.place))
    FROM unnest(lane_groups, pools, sequences, scheduled, is_new) WITH ORDINALITY
      AS m (grp, pool, sequence, scheduled, is_new, place)
    WHERE m.grp IS NOT NULL AND m.is_new AND coalesce(m.scheduled <= wall, true);
  END IF;
  numbers := ARRAY(SELECT nextval('numbers') FROM generate_series(1, n));  -- now that the groups are locked
  SELECT array_agg(CASE WHEN m.is_new AND coalesce(m.scheduled <= wall, true)
      THEN m.sequence::bigint << 41 | m.number END ORDER BY m.place) INTO places
  FROM unnest(sequences, numbers, scheduled, is_new) WITH ORDINALITY AS m (sequence, number, scheduled, is_new, place);
  lane_ids := fill_lanes(q, lane_groups, pools, places);
  WITH made AS (
    INSERT INTO jobs (number, id, kind, code, target, content_type, headers, grp, sequence, mode, pool, timeout_s,
      max_retries, delays, scheduled_for, expires_at, idempotency_key, metadata, created_at, payload)
    SELECT m.number, m.id, m.kind, m.code, m.target, m.content_type, m.headers, m.grp, m.sequence, m.mode, m.pool, m.timeout_s,
      m.max_retries, m.delays::double precision[], m.scheduled_for, m.expires_at, m.key, m.metadata, m.created_at, m.payload
    FROM unnest(numbers, ids, kinds, codes, targets, content_types, headers, groups, sequences, modes, pools, timeouts, retries,
        delays, scheduled, expiry, coalesce(keys, array_fill(NULL::text, ARRAY[n])), metadata, created, payloads, is_new)
      AS m (number, id, kind, code, target, content_type, headers, grp, sequence, mode, pool, timeout_s, max_retries, delays,
        scheduled_for, expires_at, key, metadata, created_at, payload, is_new)
    WHERE m.is_new)
  INSERT INTO job_states (number, place, lane, status, mode, grp, scheduled_for, expires_at)
  SELECT m.number, m.sequence::bigint << 41 | m.number, m.lane, 'PENDING', m.mode, m.grp,
    CASE WHEN m.lane IS NULL THEN m.scheduled_for END, m.expires_at
  FROM unnest(numbers, sequences, lane_ids, modes, groups, scheduled, expiry, is_new)
    AS m (number, sequence, lane, mode, grp, scheduled_for, expires_at, is_new)
  WHERE m.is_new;
  IF cardinality(marked) > 0 THEN
    INSERT INTO job_marks (hash, number)
    SELECT DISTINCT hashtextextended(m.mark, 0), numbers[m.position] FROM unnest(marked, marks) AS m (position, mark)
    WHERE is_new[m.position];
  END IF;
END $$;

-- Lets up to so many jobs in whose time has come; when that of the next one is.
CREATE FUNCTION enter_due_jobs(q integer, wall double precision, most integer) RETURNS double precision LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off SET enable_material = off
SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
DECLARE
  next_at double precision;
  due bigint[];
  groups text[];
  pools text[];
  places bigint[];
  lane_ids bigint[];
BEGIN
  SELECT min(s.scheduled_for) INTO next_at FROM job_states AS s WHERE s.scheduled_for IS NOT NULL;
  IF next_at IS NULL OR next_at > wall THEN
    RETURN next_at;
  END IF;
  due := ARRAY(
    SELECT s.number FROM job_states AS s WHERE s.scheduled_for <= wall
    ORDER BY s.scheduled_for LIMIT most FOR UPDATE SKIP LOCKED);
  SELECT array_agg(CASE WHEN j.mode <> 'IMMEDIATE' THEN j.grp END ORDER BY d.place), array_agg(j.pool ORDER BY d.place),
    array_agg(j.sequence::bigint << 41 | j.number ORDER BY d.place)
  INTO groups, pools, places
  FROM unnest(due) WITH ORDINALITY AS d (number, place)
    CROSS JOIN LATERAL (SELECT k.* FROM jobs AS k WHERE k.number = d.number OFFSET 0) AS j;
  IF cardinality(due) > 0 THEN
    PERFORM lock_groups(q, groups, pools, places);
    lane_ids := fill_lanes(q, groups, pools, places);
    UPDATE job_states AS s SET scheduled_for = NULL, lane = d.lane
    FROM unnest(due, lane_ids) AS d (number, lane) WHERE s.number = d.number;
  END IF;
  SELECT min(s.scheduled_for) INTO next_at FROM job_states AS s WHERE s.scheduled_for IS NOT NULL;
  RETURN next_at;
END $$;
