-- The tables of a job store, beside the lanes of an embedded queue (see there), version 1.
--
-- A job that waits for its turn, is leased or waits for a retry has a message in a lane, whose body is its number. One
-- that is finished, or whose time has not come, has none. Times are seconds since the epoch.

CREATE TABLE jobs (
  number INTEGER PRIMARY KEY,       -- in the order in which they were made
  id TEXT NOT NULL UNIQUE,
  kind TEXT NOT NULL,
  code TEXT NOT NULL,
  target TEXT NOT NULL,
  content_type TEXT NOT NULL,
  headers TEXT NOT NULL,            -- JSON: [[name, value], ...]
  grp TEXT,
  sequence INTEGER NOT NULL,
  mode TEXT NOT NULL,
  pool TEXT NOT NULL,
  timeout_s REAL NOT NULL,
  max_retries INTEGER NOT NULL,
  delays TEXT NOT NULL,             -- JSON
  scheduled_for REAL,
  expires_at REAL,
  idempotency_key TEXT,
  metadata TEXT NOT NULL,           -- JSON
  created_at REAL NOT NULL,
  status TEXT NOT NULL,             -- as it is stored: leased jobs are PENDING or ERROR here
  entered INTEGER NOT NULL,         -- 0: its time has not come, so it has no message yet
  attempts INTEGER NOT NULL DEFAULT 0,
  failures INTEGER NOT NULL DEFAULT 0,
  next_attempt_at REAL,             -- of one in ERROR; NULL: it waits for a person
  finished_at REAL,
  last_error TEXT NOT NULL DEFAULT '',
  payload BLOB                      -- as it is sent; NULL: its id is
);
CREATE UNIQUE INDEX jobs_by_key ON jobs (idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX unfinished_jobs ON jobs (status, mode, number) WHERE finished_at IS NULL;
CREATE INDEX jobs_by_group ON jobs (grp, number) WHERE grp IS NOT NULL;
CREATE INDEX jobs_by_code ON jobs (code, number);
CREATE INDEX finished_jobs ON jobs (finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX scheduled_jobs ON jobs (scheduled_for) WHERE entered = 0 AND finished_at IS NULL;
CREATE INDEX expiring_jobs ON jobs (expires_at) WHERE expires_at IS NOT NULL AND finished_at IS NULL;

-- A message stands at the position that its job has in its group, in whichever lane.
CREATE UNIQUE INDEX messages_by_position ON messages (seq);

CREATE TABLE attempts (
  job INTEGER NOT NULL,
  attempt INTEGER NOT NULL,  -- 1 for the first
  began_at REAL NOT NULL,
  duration_s REAL NOT NULL,
  status INTEGER,            -- of the answer, if there was one
  error TEXT NOT NULL,
  counts INTEGER NOT NULL,   -- 0: the endpoint asked for patience
  detail TEXT NOT NULL,
  excerpt TEXT NOT NULL,
  PRIMARY KEY (job, attempt)
) WITHOUT ROWID;

-- What people did to jobs.
CREATE TABLE actions (
  job INTEGER NOT NULL,
  at REAL NOT NULL,
  actor TEXT NOT NULL,
  action TEXT NOT NULL
);
CREATE INDEX actions_by_job ON actions (job, at);
