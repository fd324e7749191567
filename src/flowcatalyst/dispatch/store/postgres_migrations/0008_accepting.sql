-- How events come, and their jobs with them: what their messages bear, and what is not made. 0002_creating.sql has the rest.

-- Puts messages at their places: into the lanes of their groups, which are locked and have counted them, or, for a NULL,
-- into lanes of their own. The lanes, in order; nothing is done for a place that is NULL.
DROP FUNCTION fill_lanes;
CREATE FUNCTION fill_lanes(q integer, groups text[], pools text[], places bigint[], tags text[]) RETURNS bigint[]
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_material = off
SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
DECLARE
  filled bigint[];
  to_settle bigint[];
  holds_any boolean := EXISTS (SELECT 1 FROM holds WHERE queue = q);
  pauses_any boolean := EXISTS (SELECT 1 FROM paused_tags WHERE queue = q);
BEGIN
  INSERT INTO lanes (id, queue, pool, turn, messages, head)
  SELECT number_at(m.seq), q, m.pool, number_at(m.seq), 1, m.seq
  FROM unnest(groups, pools, places) AS m (grp, pool, seq) WHERE m.grp IS NULL AND m.seq IS NOT NULL;
  WITH coming AS MATERIALIZED (
    SELECT m.*, coalesce(l.id, number_at(m.seq)) AS lane, l.messages, l.head, l.leased_to, l.epoch,
      pauses_any AND EXISTS (SELECT 1 FROM paused_tags AS p WHERE p.queue = q AND p.tag = m.tag) AS is_paused
    FROM unnest(groups, pools, places, tags) WITH ORDINALITY AS m (grp, pool, seq, tag, position)
      LEFT JOIN LATERAL (
        SELECT k.id, k.messages, k.head, k.leased_to, k.epoch FROM lanes AS k
        WHERE k.queue = q AND k.name = m.grp OFFSET 0) AS l ON true),
  put AS (
    INSERT INTO messages (lane, seq, pool, body, tag, given_back)
    SELECT c.lane, c.seq, c.pool, '', c.tag, CASE WHEN c.seq <= c.leased_to THEN c.epoch ELSE 0 END  -- inside a lease, but no part of it
    FROM coming AS c WHERE c.seq IS NOT NULL)
  SELECT array_agg(CASE WHEN c.seq IS NOT NULL THEN c.lane END ORDER BY c.position),
    ARRAY(  -- what stands first there is another one now; or it is paused, or the group is held
      SELECT o.lane FROM coming AS o WHERE (o.grp IS NOT NULL OR o.is_paused) AND o.seq IS NOT NULL
      GROUP BY o.lane
      HAVING holds_any OR bool_or(o.is_paused) OR (min(o.messages) > count(*) AND min(o.head) <= min(o.seq)))
  INTO filled, to_settle FROM coming AS c;
  IF cardinality(to_settle) > 0 THEN
    PERFORM settle_lanes(to_settle);
  END IF;
  PERFORM count_up(q, (SELECT count(m) FROM unnest(places) AS m), 0);
  PERFORM wake(q);
  RETURN filled;
END $$;

-- Makes those jobs that are wanted (NULL: all), in order. Which were; the positions of those whose idempotency key was known, and the
-- ids of the first jobs that had it. Their groups are locked until the transaction ends: jobs of a group get their numbers in
-- the order in which they become visible. `delays` are array literals. `behind`: each stands behind all that is in the lane of
-- its group; its sequence is `raised` to the highest one there.
DROP FUNCTION create_jobs;
CREATE FUNCTION make_jobs(
  q integer, wall double precision, behind boolean, wanted boolean[], ids text[], kinds text[], codes text[], targets text[], content_types text[],
  headers text[], groups text[], sequences integer[], modes text[], pools text[], timeouts double precision[],
  retries integer[], delays text[], scheduled double precision[], expiry double precision[], keys text[], metadata text[],
  created double precision[], payloads bytea[], subscriptions text[], marked integer[], marks text[],
  OUT repeated integer[], OUT firsts text[], OUT is_new boolean[], OUT raised integer[])
LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off SET enable_material = off
SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
DECLARE
  n integer := cardinality(ids);
  numbers bigint[];
  places bigint[];  -- NULL: it does not enter now
  lane_groups text[];
  lane_ids bigint[];
BEGIN
  repeated := '{}';
  firsts := '{}';
  wanted := coalesce(wanted, array_fill(true, ARRAY[n]));
  is_new := wanted;
  IF EXISTS (SELECT 1 FROM unnest(subscriptions) AS s WHERE s IS NOT NULL) THEN
    PERFORM lock_subscriptions(false);
  END IF;
  IF keys IS NOT NULL THEN
    WITH asked AS (
      SELECT DISTINCT ON (a.key COLLATE "C") a.key, a.id
      FROM unnest(keys, ids, wanted) WITH ORDINALITY AS a (key, id, is_wanted, place)
      WHERE a.key IS NOT NULL AND a.is_wanted ORDER BY a.key COLLATE "C", a.place),
    added AS (INSERT INTO job_keys (key, id) SELECT asked.key, asked.id FROM asked ON CONFLICT DO NOTHING RETURNING id)
    SELECT array_agg(a.is_wanted AND (a.key IS NULL OR k.id IS NOT NULL) ORDER BY a.place) INTO is_new
    FROM unnest(keys, ids, wanted) WITH ORDINALITY AS a (key, id, is_wanted, place) LEFT JOIN added AS k ON k.id = a.id;
    SELECT coalesce(array_agg(a.place ORDER BY a.place), '{}'), coalesce(array_agg(k.id ORDER BY a.place), '{}')
    INTO repeated, firsts
    FROM unnest(keys, is_new, wanted) WITH ORDINALITY AS a (key, is_new, is_wanted, place)
      LEFT JOIN LATERAL (SELECT o.id FROM job_keys AS o WHERE o.key = a.key OFFSET 0) AS k ON true
    WHERE NOT a.is_new AND a.is_wanted;
    IF array_position(firsts, NULL) IS NOT NULL THEN
      RAISE EXCEPTION 'a job was forgotten just now' USING ERRCODE = 'serialization_failure';
    END IF;
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
  IF behind THEN
    SELECT array_agg(greatest(m.sequence, (last.seq >> 41)::integer) ORDER BY m.place) INTO sequences
    FROM unnest(sequences, lane_groups) WITH ORDINALITY AS m (sequence, grp, place)
      LEFT JOIN LATERAL (SELECT k.id FROM lanes AS k WHERE k.queue = q AND k.name = m.grp OFFSET 0) AS l ON true
      LEFT JOIN LATERAL (
        SELECT k.seq FROM messages AS k WHERE k.lane = l.id ORDER BY k.seq DESC LIMIT 1) AS last ON true;
    raised := sequences;
  END IF;
  numbers := ARRAY(SELECT nextval('numbers') FROM generate_series(1, n));  -- now that the groups are locked
  SELECT array_agg(CASE WHEN m.is_new AND coalesce(m.scheduled <= wall, true)
      THEN m.sequence::bigint << 41 | m.number END ORDER BY m.place) INTO places
  FROM unnest(sequences, numbers, scheduled, is_new) WITH ORDINALITY AS m (sequence, number, scheduled, is_new, place);
  lane_ids := fill_lanes(q, lane_groups, pools, places, subscriptions);
  WITH made AS (
    INSERT INTO jobs (number, id, kind, code, target, content_type, headers, grp, sequence, mode, pool, timeout_s,
      max_retries, delays, scheduled_for, expires_at, idempotency_key, metadata, created_at, payload, subscription)
    SELECT m.number, m.id, m.kind, m.code, m.target, m.content_type, m.headers, m.grp, m.sequence, m.mode, m.pool, m.timeout_s,
      m.max_retries, m.delays::double precision[], m.scheduled_for, m.expires_at, m.key, m.metadata, m.created_at, m.payload,
      m.subscription
    FROM unnest(numbers, ids, kinds, codes, targets, content_types, headers, groups, sequences, modes, pools, timeouts, retries,
        delays, scheduled, expiry, coalesce(keys, array_fill(NULL::text, ARRAY[n])), metadata, created, payloads,
        subscriptions, is_new)
      AS m (number, id, kind, code, target, content_type, headers, grp, sequence, mode, pool, timeout_s, max_retries, delays,
        scheduled_for, expires_at, key, metadata, created_at, payload, subscription, is_new)
    WHERE m.is_new)
  INSERT INTO job_states (number, place, lane, status, mode, grp, scheduled_for, expires_at, subscription)
  SELECT m.number, m.sequence::bigint << 41 | m.number, m.lane, 'PENDING', m.mode, m.grp,
    CASE WHEN m.lane IS NULL THEN m.scheduled_for END, m.expires_at, m.subscription
  FROM unnest(numbers, sequences, lane_ids, modes, groups, scheduled, expiry, subscriptions, is_new)
    AS m (number, sequence, lane, mode, grp, scheduled_for, expires_at, subscription, is_new)
  WHERE m.is_new;
  IF cardinality(marked) > 0 THEN
    INSERT INTO job_marks (hash, number)
    SELECT DISTINCT hashtextextended(m.mark, 0), numbers[m.position] FROM unnest(marked, marks) AS m (position, mark)
    WHERE is_new[m.position];
  END IF;
END $$;

-- Lets up to so many jobs in whose time has come; when that of the next one is.
CREATE OR REPLACE FUNCTION enter_due_jobs(q integer, wall double precision, most integer) RETURNS double precision LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off SET enable_material = off
SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
DECLARE
  next_at double precision;
  due bigint[];
  groups text[];
  pools text[];
  places bigint[];
  tags text[];
  lane_ids bigint[];
BEGIN
  SELECT min(s.scheduled_for) INTO next_at FROM job_states AS s WHERE s.scheduled_for IS NOT NULL;
  IF next_at IS NULL OR next_at > wall THEN
    RETURN next_at;
  END IF;
  PERFORM lock_subscriptions(false);
  due := ARRAY(
    SELECT s.number FROM job_states AS s WHERE s.scheduled_for <= wall
    ORDER BY s.scheduled_for LIMIT most FOR UPDATE SKIP LOCKED);
  SELECT array_agg(CASE WHEN j.mode <> 'IMMEDIATE' THEN j.grp END ORDER BY d.place), array_agg(j.pool ORDER BY d.place),
    array_agg(j.sequence::bigint << 41 | j.number ORDER BY d.place), array_agg(j.subscription ORDER BY d.place)
  INTO groups, pools, places, tags
  FROM unnest(due) WITH ORDINALITY AS d (number, place)
    CROSS JOIN LATERAL (SELECT k.* FROM jobs AS k WHERE k.number = d.number OFFSET 0) AS j;
  IF cardinality(due) > 0 THEN
    PERFORM lock_groups(q, groups, pools, places);
    lane_ids := fill_lanes(q, groups, pools, places, tags);
    UPDATE job_states AS s SET scheduled_for = NULL, lane = d.lane
    FROM unnest(due, lane_ids) AS d (number, lane) WHERE s.number = d.number;
  END IF;
  SELECT min(s.scheduled_for) INTO next_at FROM job_states AS s WHERE s.scheduled_for IS NOT NULL;
  RETURN next_at;
END $$;

-- Keeps events, in order, and makes their jobs, each of the event at the position that `of_events` says. The positions of
-- those whose deduplication id was known, and the ids of the first events that had it; and how many jobs were made of each:
-- those of a repeat are not, nor are those of a subscription that is not in the catalog any more.
CREATE FUNCTION accept_events(
  q integer, wall double precision, event_ids text[], types text[], sources text[], subjects text[], event_groups text[],
  correlation_ids text[], deduplication_ids text[], documents bytea[], event_data bytea[], of_events integer[],
  ids text[], kinds text[], codes text[], targets text[], content_types text[],
  headers text[], groups text[], sequences integer[], modes text[], pools text[], timeouts double precision[],
  retries integer[], delays text[], scheduled double precision[], expiry double precision[], keys text[], metadata text[],
  created double precision[], payloads bytea[], subscriptions text[], marked integer[], marks text[],
  OUT repeated integer[], OUT firsts text[], OUT jobs_made integer[])
LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off SET enable_material = off
SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
DECLARE
  n integer := cardinality(event_ids);
  is_new boolean[] := array_fill(true, ARRAY[n]);
  wanted boolean[];
  made boolean[] := '{}';
  numbers bigint[];
BEGIN
  PERFORM lock_subscriptions(false);
  repeated := '{}';
  firsts := '{}';
  IF deduplication_ids IS NOT NULL THEN
    WITH asked AS (
      SELECT DISTINCT ON (a.key COLLATE "C") a.key, a.id
      FROM unnest(deduplication_ids, event_ids) WITH ORDINALITY AS a (key, id, place)
      WHERE a.key IS NOT NULL ORDER BY a.key COLLATE "C", a.place),
    added AS (INSERT INTO event_keys (key, id) SELECT asked.key, asked.id FROM asked ON CONFLICT DO NOTHING RETURNING id)
    SELECT array_agg(a.key IS NULL OR k.id IS NOT NULL ORDER BY a.place) INTO is_new
    FROM unnest(deduplication_ids, event_ids) WITH ORDINALITY AS a (key, id, place) LEFT JOIN added AS k ON k.id = a.id;
    SELECT coalesce(array_agg(a.place ORDER BY a.place), '{}'), coalesce(array_agg(k.id ORDER BY a.place), '{}')
    INTO repeated, firsts
    FROM unnest(deduplication_ids, is_new) WITH ORDINALITY AS a (key, is_new, place)
      LEFT JOIN LATERAL (SELECT o.id FROM event_keys AS o WHERE o.key = a.key OFFSET 0) AS k ON true
    WHERE NOT a.is_new;
    IF array_position(firsts, NULL) IS NOT NULL THEN
      RAISE EXCEPTION 'an event was forgotten just now' USING ERRCODE = 'serialization_failure';
    END IF;
  END IF;
  IF cardinality(ids) > 0 THEN
    SELECT array_agg(is_new[j.event] AND (j.subscription IS NULL OR c.code IS NOT NULL) ORDER BY j.place) INTO wanted
    FROM unnest(of_events, subscriptions) WITH ORDINALITY AS j (event, subscription, place)
      LEFT JOIN LATERAL (
        SELECT k.code FROM catalog AS k WHERE k.kind = 'subscription' AND k.code = j.subscription OFFSET 0) AS c ON true;
    SELECT m.is_new INTO made FROM make_jobs(
      q, wall, false, wanted, ids, kinds, codes, targets, content_types, headers, groups, sequences, modes, pools, timeouts, retries, delays, scheduled, expiry, keys, metadata, created, payloads, subscriptions, marked, marks) AS m;
  END IF;
  SELECT array_agg(coalesce(j.made, 0)::integer ORDER BY e.place) INTO jobs_made
  FROM unnest(event_ids) WITH ORDINALITY AS e (id, place) LEFT JOIN (
    SELECT m.event, count(*) FILTER (WHERE m.is_made) AS made FROM unnest(of_events, made) AS m (event, is_made)
    GROUP BY m.event) AS j ON j.event = e.place;
  numbers := ARRAY(SELECT nextval('numbers') FROM generate_series(1, n));  -- now that the groups are locked
  INSERT INTO events (number, id, type, source, subject, grp, correlation_id, deduplication_id, jobs, created_at, document, data)
  SELECT e.number, e.id, e.type, e.source, e.subject, e.grp, e.correlation_id, e.key, e.jobs, wall, e.document, e.data
  FROM unnest(numbers, event_ids, types, sources, subjects, event_groups, correlation_ids,
      coalesce(deduplication_ids, array_fill(NULL::text, ARRAY[n])), jobs_made, documents, event_data, is_new)
    AS e (number, id, type, source, subject, grp, correlation_id, key, jobs, document, data, is_new)
  WHERE e.is_new;
END $$;

-- Forgets up to so many events that came before a time, the first ones first, with their deduplication ids; how many.
CREATE FUNCTION drop_events(before double precision, most integer) RETURNS integer LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
DECLARE
  numbers bigint[] := ARRAY(
    SELECT e.number FROM events AS e WHERE e.created_at < before
    ORDER BY e.created_at LIMIT most FOR UPDATE SKIP LOCKED);
BEGIN
  DELETE FROM event_keys AS k WHERE k.key = ANY (ARRAY(
    SELECT e.deduplication_id FROM events AS e WHERE e.number = ANY (numbers) AND e.deduplication_id IS NOT NULL));
  DELETE FROM events AS e WHERE e.number = ANY (numbers);
  RETURN cardinality(numbers);
END $$;
