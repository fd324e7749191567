-- The tables of a job store, beside the lanes of queues (see there), version 1.
--
-- A job that waits for its turn, is leased or waits for a retry has a message in a lane, at the place that its sequence
-- and its number give it. One that is finished, or whose time has not come, has none.
--
-- What was asked for and how far it came are two tables: the first is written once and has the long rows and most
-- indexes, the second is short and written with each attempt.
--
-- Times are seconds since the epoch, by the clocks of the processes. Delays of lanes go by the clock of the server.
-- Whoever changes the state of a job that has a message holds the lock of its lane.

SELECT open_queue('dispatch jobs');
UPDATE queues SET by_first = true WHERE name = 'dispatch jobs';

CREATE TABLE jobs (
  number bigint PRIMARY KEY,
  id text COLLATE "C" NOT NULL UNIQUE,
  kind text NOT NULL,
  code text COLLATE "C" NOT NULL,
  target text COLLATE "C" NOT NULL,
  content_type text NOT NULL,
  headers text NOT NULL,              -- JSON: [[name, value], ...]
  grp text COLLATE "C",
  sequence integer NOT NULL,
  mode text NOT NULL,
  pool text COLLATE "C" NOT NULL,
  timeout_s double precision NOT NULL,
  max_retries integer NOT NULL,
  delays double precision[] NOT NULL,
  scheduled_for double precision,
  expires_at double precision,
  idempotency_key text,
  metadata text NOT NULL,             -- JSON
  created_at double precision NOT NULL,
  payload bytea                       -- as it is sent; NULL: its id is
) WITH (autovacuum_analyze_scale_factor = 0.02);
CREATE INDEX jobs_by_group ON jobs (grp, number) WHERE grp IS NOT NULL;
CREATE INDEX jobs_by_code ON jobs (code, number);
CREATE INDEX jobs_by_time ON jobs (created_at);

CREATE TABLE job_states (
  number bigint PRIMARY KEY,
  place bigint NOT NULL,              -- of its message
  lane bigint,                        -- where its message is; NULL: it has none
  status text COLLATE "C" NOT NULL,   -- as it is stored: leased jobs are PENDING or ERROR here
  mode text COLLATE "C" NOT NULL,
  grp text COLLATE "C",
  scheduled_for double precision,     -- its time has not come, so it has no message yet
  expires_at double precision,
  attempts integer NOT NULL DEFAULT 0,
  failures integer NOT NULL DEFAULT 0,
  next_attempt_at double precision,   -- NULL in ERROR: it waits for a person
  finished_at double precision,
  last_error text NOT NULL DEFAULT ''
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000);
CREATE INDEX unfinished_jobs ON job_states (status, mode, number) WHERE finished_at IS NULL;
CREATE INDEX unfinished_of_groups ON job_states (grp, number) WHERE finished_at IS NULL AND grp IS NOT NULL;
CREATE INDEX finished_jobs ON job_states (finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX ended_jobs ON job_states (status, number) WHERE status IN ('CANCELLED', 'EXPIRED');
CREATE INDEX parked_jobs ON job_states (number) WHERE status = 'ERROR' AND next_attempt_at IS NULL;
CREATE INDEX scheduled_jobs ON job_states (scheduled_for) WHERE scheduled_for IS NOT NULL;
CREATE INDEX expiring_jobs ON job_states (expires_at) WHERE expires_at IS NOT NULL AND finished_at IS NULL;

CREATE TABLE job_keys (
  key text COLLATE "C" PRIMARY KEY,   -- an idempotency key
  id text NOT NULL                    -- of the first job that had it
);

-- Jobs by what their metadata says: a hash of each name with its value.
CREATE TABLE job_marks (
  hash bigint NOT NULL,
  number bigint NOT NULL,
  PRIMARY KEY (hash, number)
);
CREATE INDEX marks_of_job ON job_marks (number);

CREATE TABLE job_attempts (
  job bigint NOT NULL,
  attempt integer NOT NULL,           -- 1 for the first
  began_at double precision NOT NULL,
  duration_s double precision NOT NULL,
  status integer,                     -- of the answer, if there was one
  error text NOT NULL,
  counts boolean NOT NULL,            -- false: the endpoint asked for patience, or took it
  detail text NOT NULL,
  excerpt text NOT NULL,
  PRIMARY KEY (job, attempt)
);

-- What people did to jobs.
CREATE TABLE job_actions (
  id bigint GENERATED ALWAYS AS IDENTITY,
  job bigint NOT NULL,
  at double precision NOT NULL,
  actor text NOT NULL,
  action text NOT NULL,
  PRIMARY KEY (job, id)
);
