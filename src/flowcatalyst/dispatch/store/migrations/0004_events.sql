-- Version 4 of the tables of a job store: events, the catalog, paused subscriptions, and positions in groups.

ALTER TABLE jobs ADD COLUMN subscription TEXT;  -- that it was made for
ALTER TABLE jobs ADD COLUMN position INTEGER;   -- in its group, once an attempt of it failed: it keeps that
CREATE INDEX unfinished_of_subscription ON jobs (subscription, number)
WHERE subscription IS NOT NULL AND finished_at IS NULL;
-- Whose time has not come: they are in no lane, and their groups are needed all the same.
CREATE INDEX scheduled_in_groups ON jobs (grp) WHERE entered = 0 AND finished_at IS NULL AND mode <> 'IMMEDIATE';

CREATE TABLE events (
  number INTEGER PRIMARY KEY,       -- in the order in which they were kept
  id TEXT NOT NULL UNIQUE,
  type TEXT NOT NULL,
  source TEXT NOT NULL,
  subject TEXT,
  grp TEXT,
  correlation_id TEXT,
  deduplication_id TEXT,
  jobs INTEGER NOT NULL,            -- that were made of it when it came
  created_at REAL NOT NULL,
  document BLOB NOT NULL,           -- all of it but for its data, in JSON
  data BLOB NOT NULL                -- as they came; empty: none did
);
CREATE UNIQUE INDEX events_by_deduplication ON events (deduplication_id) WHERE deduplication_id IS NOT NULL;
CREATE INDEX events_by_type ON events (type, number);
CREATE INDEX events_by_subject ON events (subject, number) WHERE subject IS NOT NULL;
CREATE INDEX events_by_group ON events (grp, number) WHERE grp IS NOT NULL;
CREATE INDEX events_by_correlation ON events (correlation_id, number) WHERE correlation_id IS NOT NULL;
CREATE INDEX events_by_time ON events (created_at, number);

CREATE TABLE catalog (
  kind TEXT NOT NULL,
  code TEXT NOT NULL,
  document TEXT NOT NULL,           -- JSON
  revision INTEGER NOT NULL,        -- of the catalog when it was changed last
  created_at REAL NOT NULL,
  updated_at REAL NOT NULL,
  PRIMARY KEY (kind, code)
) WITHOUT ROWID;
CREATE TABLE catalog_revision (revision INTEGER NOT NULL);
INSERT INTO catalog_revision VALUES (0);

-- A row stays until a resume went through all jobs of its subscription.
CREATE TABLE paused_subscriptions (
  code TEXT PRIMARY KEY,
  paused INTEGER NOT NULL,          -- 0: its lanes are to be unlocked
  walked_to INTEGER                 -- number of the last job whose lane is as it should be; NULL: all are
) WITHOUT ROWID;

CREATE TABLE group_positions (
  name TEXT PRIMARY KEY,            -- of the group, in JSON, as in lanes
  given INTEGER NOT NULL,           -- the highest position that was given to a job
  delivered INTEGER NOT NULL,       -- that of the job that was delivered last; 0: none was
  touched_at REAL NOT NULL
) WITHOUT ROWID;
