-- Version 2 of the tables of a job store: groups with their sizes and what stops them, jobs by metadata and time, and
-- counts of all that is told without looking. Triggers keep them, so that no statement can forget to.

-- Since when its job is in ERROR.
ALTER TABLE messages ADD COLUMN failed_at REAL;

-- A lane of one message may be that of a job which left its group when it failed: its `grp` says which, 'null' for others.
UPDATE lanes SET grp = json_quote(job.grp)
FROM (
  SELECT m.lane, j.grp FROM jobs AS j CROSS JOIN messages AS m ON m.seq = (j.sequence << 41 | j.number)
  WHERE j.finished_at IS NULL AND j.mode <> 'IMMEDIATE') AS job
WHERE lanes.id = job.lane AND lanes.name IS NULL;
UPDATE lanes SET grp = 'null'
WHERE name IS NULL AND NOT EXISTS (
  SELECT 1 FROM messages AS m CROSS JOIN jobs AS j ON j.number = m.seq & 2199023255551
  WHERE m.lane = lanes.id AND j.mode <> 'IMMEDIATE');
CREATE INDEX lanes_aside ON lanes (grp) WHERE name IS NULL AND grp <> 'null';
CREATE INDEX leased_lanes ON lanes (owner) WHERE owner IS NOT NULL;

-- One row for each group that has jobs in order or is held.
CREATE TABLE groups (
  name TEXT PRIMARY KEY,             -- in JSON, as in lanes
  jobs INTEGER NOT NULL DEFAULT 0,   -- unfinished, in order
  blocked_since REAL,                -- its first job failed then
  held_since REAL,                   -- somebody holds it
  held_by TEXT NOT NULL DEFAULT '',
  size INTEGER GENERATED ALWAYS AS (CASE
    WHEN jobs <= 1 THEN jobs WHEN jobs <= 10 THEN 10 WHEN jobs <= 100 THEN 100 WHEN jobs <= 1000 THEN 1000
    WHEN jobs <= 10000 THEN 10000 WHEN jobs <= 100000 THEN 100000 ELSE 9223372036854775807 END) VIRTUAL,
  stopped_since REAL GENERATED ALWAYS AS (CASE
    WHEN blocked_since IS NULL THEN held_since WHEN held_since IS NULL THEN blocked_since
    ELSE min(blocked_since, held_since) END) VIRTUAL
) WITHOUT ROWID;
CREATE INDEX stopped_groups ON groups (stopped_since, name) WHERE stopped_since IS NOT NULL;
CREATE INDEX going_groups ON groups (name) WHERE stopped_since IS NULL;

CREATE TABLE group_sizes (
  size INTEGER PRIMARY KEY,
  groups INTEGER NOT NULL DEFAULT 0  -- how many have as many jobs, and more than the next smaller size
);
INSERT INTO group_sizes (size) VALUES (1), (10), (100), (1000), (10000), (100000), (9223372036854775807);

CREATE TABLE figures (
  scheduled INTEGER NOT NULL,  -- jobs that were not let into their lanes yet
  parked INTEGER NOT NULL,     -- jobs in ERROR without a next attempt
  blocked INTEGER NOT NULL     -- groups
);
INSERT INTO figures VALUES (
  (SELECT count(*) FROM jobs WHERE entered = 0 AND finished_at IS NULL),
  (SELECT count(*) FROM jobs WHERE status = 'ERROR' AND next_attempt_at IS NULL AND finished_at IS NULL),
  0);

-- Nothing is written to `blocked_since` that is there already: two indexes go by it.
CREATE TRIGGER lane_comes AFTER INSERT ON lanes WHEN new.name IS NOT NULL BEGIN
  INSERT INTO groups (name) VALUES (new.name) ON CONFLICT DO NOTHING;
END;
CREATE TRIGGER lane_goes AFTER DELETE ON lanes WHEN old.name IS NOT NULL BEGIN
  DELETE FROM groups WHERE name = old.name AND held_since IS NULL;
END;
CREATE TRIGGER message_comes AFTER INSERT ON messages BEGIN
  UPDATE groups SET jobs = jobs + 1 WHERE name = (SELECT name FROM lanes WHERE id = new.lane);
  UPDATE groups SET blocked_since = (SELECT failed_at FROM messages WHERE lane = new.lane ORDER BY seq LIMIT 1)
  WHERE name = (SELECT name FROM lanes WHERE id = new.lane)
  AND blocked_since IS NOT (SELECT failed_at FROM messages WHERE lane = new.lane ORDER BY seq LIMIT 1);
END;
CREATE TRIGGER message_goes AFTER DELETE ON messages BEGIN
  UPDATE groups SET jobs = jobs - 1 WHERE name = (SELECT name FROM lanes WHERE id = old.lane);
END;
CREATE TRIGGER first_message_goes AFTER DELETE ON messages
WHEN old.failed_at IS NOT NULL
OR (SELECT failed_at FROM messages WHERE lane = old.lane ORDER BY seq LIMIT 1) IS NOT NULL BEGIN
  UPDATE groups SET blocked_since = (SELECT failed_at FROM messages WHERE lane = old.lane ORDER BY seq LIMIT 1)
  WHERE name = (SELECT name FROM lanes WHERE id = old.lane);
END;
CREATE TRIGGER message_moves AFTER UPDATE OF lane ON messages WHEN old.lane <> new.lane BEGIN
  UPDATE groups SET jobs = jobs - 1 WHERE name = (SELECT name FROM lanes WHERE id = old.lane);
  UPDATE groups SET blocked_since = (SELECT failed_at FROM messages WHERE lane = old.lane ORDER BY seq LIMIT 1)
  WHERE name = (SELECT name FROM lanes WHERE id = old.lane)
  AND blocked_since IS NOT (SELECT failed_at FROM messages WHERE lane = old.lane ORDER BY seq LIMIT 1);
  UPDATE groups SET jobs = jobs + 1 WHERE name = (SELECT name FROM lanes WHERE id = new.lane);
  UPDATE groups SET blocked_since = (SELECT failed_at FROM messages WHERE lane = new.lane ORDER BY seq LIMIT 1)
  WHERE name = (SELECT name FROM lanes WHERE id = new.lane)
  AND blocked_since IS NOT (SELECT failed_at FROM messages WHERE lane = new.lane ORDER BY seq LIMIT 1);
END;
CREATE TRIGGER message_fails AFTER UPDATE OF failed_at ON messages WHEN old.failed_at IS NOT new.failed_at BEGIN
  UPDATE groups SET blocked_since = (SELECT failed_at FROM messages WHERE lane = new.lane ORDER BY seq LIMIT 1)
  WHERE name = (SELECT name FROM lanes WHERE id = new.lane);
END;
CREATE TRIGGER group_grows_or_shrinks AFTER UPDATE OF jobs ON groups WHEN old.size <> new.size BEGIN
  UPDATE group_sizes SET groups = groups - 1 WHERE size = old.size;
  UPDATE group_sizes SET groups = groups + 1 WHERE size = new.size;
END;
CREATE TRIGGER group_is_blocked AFTER UPDATE OF blocked_since ON groups
WHEN (old.blocked_since IS NULL) <> (new.blocked_since IS NULL) BEGIN
  UPDATE figures SET blocked = blocked + iif(new.blocked_since IS NULL, -1, 1);
END;
CREATE TRIGGER job_is_scheduled AFTER INSERT ON jobs WHEN new.entered = 0 BEGIN
  UPDATE figures SET scheduled = scheduled + 1;
END;
CREATE TRIGGER job_is_scheduled_no_more AFTER UPDATE OF entered, finished_at ON jobs
WHEN old.entered = 0 AND old.finished_at IS NULL AND (new.entered = 1 OR new.finished_at IS NOT NULL) BEGIN
  UPDATE figures SET scheduled = scheduled - 1;
END;
CREATE TRIGGER job_is_parked AFTER UPDATE OF status, next_attempt_at ON jobs
WHEN (old.status = 'ERROR' AND old.next_attempt_at IS NULL) <> (new.status = 'ERROR' AND new.next_attempt_at IS NULL)
BEGIN
  UPDATE figures SET parked = parked + iif(new.status = 'ERROR' AND new.next_attempt_at IS NULL, 1, -1);
END;

-- What is there already: each group grows from nothing.
INSERT INTO groups (name) SELECT name FROM lanes WHERE name IS NOT NULL;
UPDATE groups SET jobs = (
  SELECT count(*) FROM lanes AS l CROSS JOIN messages AS m ON m.lane = l.id WHERE l.queue = 'jobs' AND l.name = groups.name);
UPDATE messages SET failed_at = failed.at
FROM (
  SELECT j.sequence << 41 | j.number AS seq,
    ifnull((SELECT max(began_at) FROM attempts WHERE job = j.number), j.created_at) AS at
  FROM jobs AS j WHERE j.finished_at IS NULL AND j.status = 'ERROR') AS failed
WHERE messages.seq = failed.seq;

-- Lists walk one of these, the newest job first.
DROP INDEX unfinished_jobs;
CREATE INDEX unfinished_jobs ON jobs (status, number) WHERE finished_at IS NULL;
CREATE INDEX unfinished_in_order ON jobs (status, mode, number) WHERE finished_at IS NULL AND mode <> 'IMMEDIATE';
CREATE INDEX parked_jobs ON jobs (number) WHERE status = 'ERROR' AND next_attempt_at IS NULL;
CREATE INDEX ended_jobs ON jobs (status, number) WHERE finished_at IS NOT NULL;
CREATE INDEX jobs_by_time ON jobs (created_at, number);

CREATE TABLE job_metadata (
  name TEXT NOT NULL,
  value TEXT NOT NULL,
  job INTEGER NOT NULL,
  PRIMARY KEY (name, value, job)
) WITHOUT ROWID;
INSERT INTO job_metadata (name, value, job) SELECT m.key, m.value, j.number FROM jobs AS j CROSS JOIN json_each(j.metadata) AS m;
