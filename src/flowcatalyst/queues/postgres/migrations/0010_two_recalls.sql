-- Two who recall the same.

-- Hands out of these lanes again, but for those that somebody else asked back since then. What was not answered stays asked
-- for: somebody else may wait for the answer too.
CREATE OR REPLACE FUNCTION end_recall(q integer, ids bigint[], until timestamptz) RETURNS void LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  busy_lanes bigint[] := lock_lanes(ids);  -- they are ready by themselves a little later
  ended bigint[];
BEGIN
  WITH free AS (
    UPDATE lanes AS l SET recalled_until = NULL
    WHERE l.id = ANY (ids) AND l.id <> ALL (busy_lanes) AND l.recalled_until = until RETURNING l.id)
  SELECT array_agg(f.id) INTO ended FROM free AS f;
  IF ended IS NOT NULL THEN
    PERFORM settle_lanes(ended);
    PERFORM wake(q);
  END IF;
END $$;
