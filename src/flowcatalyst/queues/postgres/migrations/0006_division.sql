-- Owners that divide something among them: which generation each keeps to, and which there are. docs/adr/0019 says why that
-- is enough; `queues/division.py` decides what is written here.

ALTER TABLE owners ADD COLUMN slots_kept bigint;    -- generation of slots that it keeps to; NULL: it takes no part
ALTER TABLE owners ADD COLUMN permits_kept bigint;

-- One row for each thing. Members are owners, in the order of their ranks.
CREATE TABLE divisions (
  thing text PRIMARY KEY,
  in_force bigint NOT NULL DEFAULT 0,
  in_force_members bigint[] NOT NULL DEFAULT '{}',
  newest bigint NOT NULL DEFAULT 0,
  newest_members bigint[] NOT NULL DEFAULT '{}'
) WITH (fillfactor = 50);
INSERT INTO divisions (thing) VALUES ('slots'), ('permits');

-- Renews an owner that takes part. Owners and divisions as they were at one moment: each owner once for each thing.
CREATE FUNCTION renew_member(owner_id bigint, is_waiting boolean, slots bigint, permits bigint)
RETURNS TABLE (
  owner bigint, beats bigint, thing text, kept bigint, in_force bigint, in_force_members bigint[], newest bigint,
  newest_members bigint[])
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
  UPDATE owners AS o SET beat = o.beat + 1, beat_at = now(), waits = is_waiting, slots_kept = slots, permits_kept = permits
  WHERE o.id = owner_id;
  RETURN QUERY
    SELECT o.id, o.beat, d.thing, CASE d.thing WHEN 'slots' THEN o.slots_kept ELSE o.permits_kept END,
      d.in_force, d.in_force_members, d.newest, d.newest_members
    FROM owners AS o CROSS JOIN divisions AS d ORDER BY o.id;
END $$;

-- Writes a division in place of the one with these generations, if that is still there, and tells everybody.
CREATE FUNCTION divide(
  of_thing text, old_in_force bigint, old_newest bigint, new_in_force bigint, new_in_force_members bigint[],
  new_newest bigint, new_newest_members bigint[]) RETURNS boolean LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
  UPDATE divisions AS d SET in_force = new_in_force, in_force_members = new_in_force_members, newest = new_newest,
    newest_members = new_newest_members
  WHERE d.thing = of_thing AND d.in_force = old_in_force AND d.newest = old_newest;
  IF FOUND THEN
    PERFORM pg_notify('flowcatalyst_' || current_schema(), 'divisions');
  END IF;
  RETURN FOUND;
END $$;
