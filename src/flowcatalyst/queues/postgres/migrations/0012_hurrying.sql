-- Somebody wants what was given back with a delay shown now.

-- Ends the delays that lock the lane of a message: that of its group, or the one that it has for itself. Whether there were any.
CREATE FUNCTION hurry(queue_name text, group_name text, asked_seq bigint) RETURNS boolean LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  q integer := (SELECT queues.id FROM queues WHERE queues.name = queue_name);
  found bigint[];
  busy_lanes bigint[];
BEGIN
  found := ARRAY(
    SELECT l.id FROM lanes AS l WHERE l.queue = q AND l.name = group_name AND l.due IS NOT NULL AND l.owner IS NULL
    UNION ALL
    SELECT l.id FROM lanes AS l WHERE l.queue = q AND l.name IS NULL AND l.leased_to = asked_seq AND l.due IS NOT NULL
      AND l.owner IS NULL);
  busy_lanes := lock_lanes(found);
  found := ARRAY(
    SELECT l.id FROM lanes AS l WHERE l.id = ANY (found) AND l.id <> ALL (busy_lanes) AND l.due IS NOT NULL AND l.owner IS NULL);
  IF cardinality(found) = 0 THEN
    RETURN false;
  END IF;
  UPDATE messages AS m SET visible_at = NULL FROM lanes AS l
  WHERE l.id = ANY (found) AND m.lane = l.id AND m.seq BETWEEN l.head AND l.leased_to AND m.visible_at IS NOT NULL;
  PERFORM settle_lanes(found);
  PERFORM wake(q);
  RETURN true;
END $$;
