-- What a platform keeps beside its jobs: events, the catalog of subscriptions, pools and keys, which subscriptions are paused,
-- and how far the groups came.

ALTER TABLE jobs ADD COLUMN subscription text COLLATE "C";  -- that it was made for; its message bears it as its tag
CREATE INDEX jobs_by_subscription ON jobs (subscription, number) WHERE subscription IS NOT NULL;

ALTER TABLE job_states ADD COLUMN subscription text COLLATE "C";
ALTER TABLE job_states ADD COLUMN position bigint;  -- in its group, once an attempt was made
CREATE INDEX unfinished_of_subscriptions ON job_states (subscription, number)
  WHERE finished_at IS NULL AND subscription IS NOT NULL;

-- An event as its sender wrote it is `document`, JSON without its data, and `data`; the other columns are for those who look
-- for it. Numbers are given when the groups of its jobs are locked: in a group they follow the order of the jobs.
CREATE TABLE events (
  number bigint PRIMARY KEY,
  id text COLLATE "C" NOT NULL UNIQUE,
  type text COLLATE "C" NOT NULL,
  source text COLLATE "C" NOT NULL,
  subject text COLLATE "C",
  grp text COLLATE "C",
  correlation_id text COLLATE "C",
  deduplication_id text COLLATE "C",
  jobs integer NOT NULL,              -- that were made of it when it came
  created_at double precision NOT NULL,
  document bytea NOT NULL,
  data bytea                          -- NULL: it has none
) WITH (autovacuum_analyze_scale_factor = 0.02);
CREATE INDEX events_by_type ON events (type, number);
CREATE INDEX events_by_subject ON events (subject, number) WHERE subject IS NOT NULL;
CREATE INDEX events_by_group ON events (grp, number) WHERE grp IS NOT NULL;
CREATE INDEX events_by_correlation ON events (correlation_id, number) WHERE correlation_id IS NOT NULL;
CREATE INDEX events_by_time ON events (created_at);

CREATE TABLE event_keys (
  key text COLLATE "C" PRIMARY KEY,   -- a deduplication id
  id text NOT NULL                    -- of the first event that had it
);

-- The catalog: few entries, and a number that grows with each change. Whoever changes it has the row of that number locked.
CREATE TABLE catalog (
  kind text COLLATE "C" NOT NULL,
  code text COLLATE "C" NOT NULL,
  document text NOT NULL,
  revision bigint NOT NULL,           -- of the catalog when it was changed last
  created_at double precision NOT NULL,
  updated_at double precision NOT NULL,
  PRIMARY KEY (kind, code)
);
CREATE TABLE catalog_revision (revision bigint NOT NULL) WITH (fillfactor = 20);
INSERT INTO catalog_revision VALUES (0);

-- Subscriptions that were paused or resumed and of whose jobs not all have been looked at since.
CREATE TABLE pause_walks (
  subscription text COLLATE "C" PRIMARY KEY,
  walked_to bigint NOT NULL           -- the number of the last job whose lane was settled
);

-- How many positions were given out in a group, and the position of the job that was delivered last. A row goes with the
-- last job of its group.
CREATE TABLE group_positions (
  name text COLLATE "C" PRIMARY KEY,
  given bigint NOT NULL,
  delivered bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000);

-- Makers of jobs share this lock; who removes, pauses or resumes a subscription has it alone, for a moment. So what those
-- make knows of it, or is there for him to see. It comes before all locks of rows.
CREATE FUNCTION lock_subscriptions(alone boolean) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF alone THEN
    PERFORM pg_advisory_xact_lock(1735159650, hashtext('flowcatalyst subscriptions of ' || current_schema()));
  ELSE
    PERFORM pg_advisory_xact_lock_shared(1735159650, hashtext('flowcatalyst subscriptions of ' || current_schema()));
  END IF;
END $$;

-- The next revision. Its row is locked: changes of the catalog follow each other, and are told to everybody.
CREATE FUNCTION next_revision() RETURNS bigint LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  grown bigint;
BEGIN
  UPDATE catalog_revision AS r SET revision = r.revision + 1 RETURNING r.revision INTO grown;
  PERFORM pg_notify('flowcatalyst_' || current_schema(), 'catalog');
  RETURN grown;
END $$;

-- The new entry; nothing if the code is taken.
CREATE FUNCTION add_entry(new_kind text, new_code text, new_document text, wall double precision) RETURNS SETOF catalog
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
  entry catalog;
BEGIN
  PERFORM 1 FROM catalog_revision FOR UPDATE;
  IF NOT EXISTS (SELECT 1 FROM catalog AS c WHERE c.kind = new_kind AND c.code = new_code) THEN
    entry := (new_kind, new_code, new_document, next_revision(), wall, wall);
    INSERT INTO catalog SELECT entry.*;
    RETURN NEXT entry;
  END IF;
END $$;

-- The entry as it is now. With `quiet` no revision grows. Nothing was changed if the entry has another revision than the
-- expected one, if there is one; there is nothing if there is no such entry.
CREATE FUNCTION change_entry(
  of_kind text, of_code text, new_document text, expected bigint, quiet boolean, wall double precision,
  OUT is_changed boolean, OUT entry catalog)
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
#variable_conflict use_column
BEGIN
  PERFORM 1 FROM catalog_revision FOR UPDATE;
  SELECT c.* INTO entry FROM catalog AS c WHERE c.kind = of_kind AND c.code = of_code;
  is_changed := entry.code IS NOT NULL AND coalesce(entry.revision = expected, true);
  IF is_changed THEN
    entry.document := new_document;
    entry.updated_at := wall;
    entry.revision := CASE WHEN quiet THEN entry.revision ELSE next_revision() END;
    UPDATE catalog AS c SET document = entry.document, updated_at = entry.updated_at, revision = entry.revision
    WHERE c.kind = of_kind AND c.code = of_code;
  END IF;
END $$;

-- Whether there was such an entry.
CREATE FUNCTION remove_entry(of_kind text, of_code text) RETURNS boolean LANGUAGE plpgsql
SET search_path FROM CURRENT AS $$
#variable_conflict use_column
BEGIN
  IF of_kind = 'subscription' THEN
    PERFORM lock_subscriptions(true);
  END IF;
  PERFORM 1 FROM catalog_revision FOR UPDATE;
  DELETE FROM catalog AS c WHERE c.kind = of_kind AND c.code = of_code;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  PERFORM next_revision();
  RETURN true;
END $$;
