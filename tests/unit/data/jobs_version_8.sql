-- What the code of version 7 left, as the code of version 8 keeps it: job_migration_test.py says what it holds.
BEGIN TRANSACTION;
CREATE TABLE actions (
  job INTEGER NOT NULL,
  at REAL NOT NULL,
  actor TEXT NOT NULL,
  action TEXT NOT NULL
);
INSERT INTO "actions" VALUES(2,1000000.0,'ann','cancel');
INSERT INTO "actions" VALUES(15,1000000.0,'ann','change mode to NEXT_ON_ERROR');
INSERT INTO "actions" VALUES(24,1000000.0,'ann','change mode to IMMEDIATE');
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
INSERT INTO "attempts" VALUES(1,1,999999.0,1.0,200,'NONE',0,'','');
INSERT INTO "attempts" VALUES(3,1,999999.0,1.0,500,'HTTP_ERROR',1,'it broke','');
INSERT INTO "attempts" VALUES(7,1,999999.0,1.0,500,'HTTP_ERROR',1,'it broke','');
INSERT INTO "attempts" VALUES(12,1,999999.0,1.0,500,'HTTP_ERROR',1,'it broke','');
INSERT INTO "attempts" VALUES(15,1,999999.0,1.0,500,'HTTP_ERROR',1,'it broke','');
CREATE TABLE catalog (
  kind TEXT NOT NULL,
  code TEXT NOT NULL,
  document TEXT NOT NULL,           -- JSON
  revision INTEGER NOT NULL,        -- of the catalog when it was changed last
  created_at REAL NOT NULL,
  updated_at REAL NOT NULL,
  PRIMARY KEY (kind, code)
) WITHOUT ROWID;
INSERT INTO "catalog" VALUES('subscription','s','{"code":"s"}',1,1000000.0,1000000.0);
CREATE TABLE catalog_revision (revision INTEGER NOT NULL);
INSERT INTO "catalog_revision" VALUES(3);
CREATE TABLE deduplication (
  queue TEXT NOT NULL,
  id TEXT NOT NULL,
  seq INTEGER NOT NULL,  -- of the message that was accepted
  expires_at REAL NOT NULL,
  PRIMARY KEY (queue, id)
) WITHOUT ROWID;
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
INSERT INTO "events" VALUES(35,'e1','order.created','shop',NULL,'g ü',NULL,'d1',0,1000000.0,X'7B226964223A226531222C2274797065223A226F726465722E63726561746564222C22736F75726365223A2273686F70222C2274696D65223A22313937302D30312D31325431333A34363A34305A222C2273656E6465724964223A6E756C6C2C227375626A656374223A6E756C6C2C2264617461223A6E756C6C2C2264617461426173653634223A6E756C6C2C2264617461436F6E74656E7454797065223A6E756C6C2C226D65737361676547726F7570223A226720C3BC222C2264656475706C69636174696F6E4964223A226431222C22636F7272656C6174696F6E4964223A6E756C6C2C22636175736174696F6E4964223A6E756C6C2C22657874656E73696F6E73223A7B7D2C227370656356657273696F6E223A22312E30227D',X'7B20226E223A2031207D');
CREATE TABLE figures (
  scheduled INTEGER NOT NULL,  -- jobs that were not let into their lanes yet
  parked INTEGER NOT NULL,     -- jobs in ERROR without a next attempt
  blocked INTEGER NOT NULL     -- groups
);
INSERT INTO "figures" VALUES(1,3,1);
CREATE TABLE group_positions (
  name TEXT PRIMARY KEY,            -- of the group, in JSON, as in lanes
  given INTEGER NOT NULL,           -- the highest position that was given to a job
  delivered INTEGER NOT NULL,       -- that of the job that was delivered last; 0: none was
  touched_at REAL NOT NULL
) WITHOUT ROWID;
INSERT INTO "group_positions" VALUES('"l"',5,3,1000000.0);
CREATE TABLE group_sizes (
  size INTEGER PRIMARY KEY,
  groups INTEGER NOT NULL DEFAULT 0  -- how many have as many jobs, and more than the next smaller size
);
INSERT INTO "group_sizes" VALUES(1,3);
INSERT INTO "group_sizes" VALUES(10,2);
INSERT INTO "group_sizes" VALUES(100,0);
INSERT INTO "group_sizes" VALUES(1000,0);
INSERT INTO "group_sizes" VALUES(10000,0);
INSERT INTO "group_sizes" VALUES(100000,0);
INSERT INTO "group_sizes" VALUES(9223372036854775807,0);
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
INSERT INTO "groups" VALUES('"b ü/\n"',2,1000000.0,NULL,'');
INSERT INTO "groups" VALUES('"c"',1,NULL,NULL,'');
INSERT INTO "groups" VALUES('"l"',2,NULL,NULL,'');
INSERT INTO "groups" VALUES('"m"',1,NULL,NULL,'');
INSERT INTO "groups" VALUES('"n"',1,NULL,NULL,'');
CREATE TABLE job_metadata (
  name TEXT NOT NULL,
  value TEXT NOT NULL,
  job INTEGER NOT NULL,
  PRIMARY KEY (name, value, job)
) WITHOUT ROWID;
INSERT INTO "job_metadata" VALUES('tenant','acme',1);
INSERT INTO "job_metadata" VALUES('tenant','acme',3);
INSERT INTO "job_metadata" VALUES('tier','1',3);
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
, subscription TEXT, position INTEGER);
INSERT INTO "jobs" VALUES(1,'done','TASK','test','http://127.0.0.1:9/h','application/json','[]',NULL,99,'IMMEDIATE','DEFAULT-POOL',30.0,3,'[1.0,5.0]',NULL,NULL,NULL,'{"tenant":"acme"}',1000000.0,'COMPLETED',1,1,0,NULL,1000000.0,'',X'7B7D',NULL,NULL);
INSERT INTO "jobs" VALUES(2,'gone','TASK','test','http://127.0.0.1:9/h','application/json','[]',NULL,99,'IMMEDIATE','DEFAULT-POOL',30.0,3,'[1.0,5.0]',NULL,NULL,NULL,'{}',1000000.0,'CANCELLED',1,0,0,NULL,1000000.0,'',X'7B7D',NULL,NULL);
INSERT INTO "jobs" VALUES(3,'b1','TASK','test','http://127.0.0.1:9/h','application/json','[]','b ü/
',99,'BLOCK_ON_ERROR','DEFAULT-POOL',30.0,3,'[1.0,5.0]',NULL,NULL,NULL,'{"tenant":"acme","tier":"1"}',1000000.0,'ERROR',1,1,1,NULL,NULL,'it broke',X'7B7D',NULL,NULL);
INSERT INTO "jobs" VALUES(4,'b2','TASK','test','http://127.0.0.1:9/h','application/json','[]','b ü/
',99,'BLOCK_ON_ERROR','DEFAULT-POOL',30.0,3,'[1.0,5.0]',NULL,NULL,NULL,'{}',1000000.0,'PENDING',1,0,0,NULL,NULL,'',X'7B7D',NULL,NULL);
INSERT INTO "jobs" VALUES(7,'n1','TASK','test','http://127.0.0.1:9/h','application/json','[]','n',99,'NEXT_ON_ERROR','DEFAULT-POOL',30.0,3,'[1.0,5.0]',NULL,NULL,NULL,'{}',1000000.0,'ERROR',1,1,1,1000030.0,NULL,'it broke',X'7B7D',NULL,NULL);
INSERT INTO "jobs" VALUES(8,'n2','TASK','test','http://127.0.0.1:9/h','application/json','[]','n',99,'NEXT_ON_ERROR','DEFAULT-POOL',30.0,3,'[1.0,5.0]',NULL,NULL,NULL,'{}',1000000.0,'PENDING',1,0,0,NULL,NULL,'',X'7B7D',NULL,NULL);
INSERT INTO "jobs" VALUES(12,'i1','TASK','test','http://127.0.0.1:9/h','application/json','[]','n',99,'IMMEDIATE','DEFAULT-POOL',30.0,3,'[1.0,5.0]',NULL,NULL,NULL,'{}',1000000.0,'ERROR',1,1,1,NULL,NULL,'it broke',X'7B7D',NULL,NULL);
INSERT INTO "jobs" VALUES(15,'c1','TASK','test','http://127.0.0.1:9/h','application/json','[]','c',99,'NEXT_ON_ERROR','DEFAULT-POOL',30.0,3,'[1.0,5.0]',NULL,NULL,NULL,'{}',1000000.0,'ERROR',1,1,1,NULL,NULL,'it broke',X'7B7D',NULL,NULL);
INSERT INTO "jobs" VALUES(16,'c2','TASK','test','http://127.0.0.1:9/h','application/json','[]','c',99,'BLOCK_ON_ERROR','DEFAULT-POOL',30.0,3,'[1.0,5.0]',NULL,NULL,NULL,'{}',1000000.0,'PENDING',1,0,0,NULL,NULL,'',X'7B7D',NULL,NULL);
INSERT INTO "jobs" VALUES(24,'m1','TASK','test','http://127.0.0.1:9/h','application/json','[]','m',99,'IMMEDIATE','DEFAULT-POOL',30.0,3,'[1.0,5.0]',NULL,NULL,NULL,'{}',1000000.0,'PENDING',1,0,0,NULL,NULL,'',X'7B7D',NULL,NULL);
INSERT INTO "jobs" VALUES(25,'m2','TASK','test','http://127.0.0.1:9/h','application/json','[]','m',99,'BLOCK_ON_ERROR','DEFAULT-POOL',30.0,3,'[1.0,5.0]',NULL,NULL,NULL,'{}',1000000.0,'PENDING',1,0,0,NULL,NULL,'',X'7B7D',NULL,NULL);
INSERT INTO "jobs" VALUES(30,'later','TASK','test','http://127.0.0.1:9/h','application/json','[]','b ü/
',99,'BLOCK_ON_ERROR','DEFAULT-POOL',30.0,3,'[1.0,5.0]',1000100.0,NULL,NULL,'{}',1000000.0,'PENDING',0,0,0,NULL,NULL,'',X'7B7D',NULL,NULL);
INSERT INTO "jobs" VALUES(31,'brief','TASK','test','http://127.0.0.1:9/h','application/json','[]',NULL,99,'IMMEDIATE','DEFAULT-POOL',30.0,3,'[1.0,5.0]',NULL,1000050.0,'key','{}',1000000.0,'PENDING',1,0,0,NULL,NULL,'',X'7B7D',NULL,NULL);
INSERT INTO "jobs" VALUES(32,'l1','TASK','test','http://127.0.0.1:9/h','application/json','[]','l',99,'BLOCK_ON_ERROR','DEFAULT-POOL',30.0,3,'[1.0,5.0]',NULL,NULL,NULL,'{}',1000000.0,'PENDING',1,0,0,NULL,NULL,'',X'7B7D',NULL,NULL);
INSERT INTO "jobs" VALUES(33,'l2','TASK','test','http://127.0.0.1:9/h','application/json','[]','l',99,'BLOCK_ON_ERROR','DEFAULT-POOL',30.0,3,'[1.0,5.0]',NULL,NULL,NULL,'{}',1000000.0,'PENDING',1,0,0,NULL,NULL,'',X'7B7D',NULL,NULL);
CREATE TABLE lanes (
  id INTEGER PRIMARY KEY,               -- number of the message it was made for
  queue TEXT NOT NULL,
  name TEXT,                            -- the group; NULL: a lane of one message
  grp TEXT NOT NULL,                    -- the group as it is handed out, also for a lane of one message
  pool TEXT NOT NULL,                   -- that its first message names
  turn INTEGER NOT NULL,                -- a number that it got when it became ready: whoever waits longest comes first
  epoch INTEGER NOT NULL DEFAULT 0,     -- how often it was leased; older receipts are stale
  leased_to INTEGER NOT NULL DEFAULT 0, -- seq of the last message of the newest lease
  owner TEXT,                           -- who holds that lease; NULL: nobody
  due REAL                              -- locked until then: its lease ends, or its delays do; NULL: ready
, leased INTEGER NOT NULL DEFAULT 0, delayed INTEGER NOT NULL DEFAULT 0, recall_epoch INTEGER, recalled_until REAL, out_epoch INTEGER, out_until REAL);
INSERT INTO "lanes" VALUES(3,'jobs','"b ü/\n"','"b ü/\n"','"DEFAULT-POOL"',6,1,217703302299651,NULL,9e999,0,1,NULL,NULL,NULL,NULL);
INSERT INTO "lanes" VALUES(7,'jobs','"n"','"n"','"DEFAULT-POOL"',18,4,217703302299656,'1-dead',1000060.0,1,0,NULL,NULL,NULL,NULL);
INSERT INTO "lanes" VALUES(10,'jobs',NULL,'"n"','"DEFAULT-POOL"',10,0,217703302299655,NULL,1000030.0,0,1,NULL,NULL,NULL,NULL);
INSERT INTO "lanes" VALUES(14,'jobs',NULL,'null','"DEFAULT-POOL"',14,0,217703302299660,NULL,9e999,0,1,NULL,NULL,NULL,NULL);
INSERT INTO "lanes" VALUES(15,'jobs','"c"','"c"','"DEFAULT-POOL"',23,3,217703302299664,'1-dead',1000060.0,1,0,NULL,NULL,NULL,NULL);
INSERT INTO "lanes" VALUES(21,'jobs',NULL,'"c"','"DEFAULT-POOL"',21,0,217703302299663,NULL,9e999,0,1,NULL,NULL,NULL,NULL);
INSERT INTO "lanes" VALUES(24,'jobs','"m"','"m"','"DEFAULT-POOL"',24,2,217703302299673,'1-dead',1000060.0,1,0,NULL,999999.5,NULL,NULL);
INSERT INTO "lanes" VALUES(27,'jobs',NULL,'null','"DEFAULT-POOL"',27,1,217703302299672,'1-dead',1000060.0,1,0,NULL,NULL,NULL,NULL);
INSERT INTO "lanes" VALUES(31,'jobs',NULL,'null','"DEFAULT-POOL"',31,1,217703302299679,'1-dead',1000060.0,1,0,NULL,NULL,NULL,NULL);
INSERT INTO "lanes" VALUES(32,'jobs','"l"','"l"','"DEFAULT-POOL"',32,1,217703302299681,'1-dead',1000060.0,2,0,1,999999.5,NULL,NULL);
CREATE TABLE messages (
  lane INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  published_at REAL NOT NULL,             -- wall time, for people who look into the file
  given_back INTEGER NOT NULL DEFAULT 0,  -- epoch of the lease it was last given back from
  visible_at REAL,                        -- when it was given back with a delay: until then
  receives INTEGER NOT NULL DEFAULT 0,    -- deliveries that ended without an ack
  failures INTEGER NOT NULL DEFAULT 0,
  pool TEXT NOT NULL,
  body TEXT NOT NULL, failed_at REAL,
  PRIMARY KEY (lane, seq)
) WITHOUT ROWID;
INSERT INTO "messages" VALUES(3,217703302299651,1000000.0,1,9e999,1,1,'"DEFAULT-POOL"','"3"',1000000.0);
INSERT INTO "messages" VALUES(3,217703302299652,1000000.0,0,NULL,0,0,'"DEFAULT-POOL"','"4"',NULL);
INSERT INTO "messages" VALUES(7,217703302299656,1000000.0,3,NULL,2,0,'"DEFAULT-POOL"','"8"',NULL);
INSERT INTO "messages" VALUES(10,217703302299655,1000000.0,0,1000030.0,1,1,'"DEFAULT-POOL"','"7"',1000000.0);
INSERT INTO "messages" VALUES(14,217703302299660,1000000.0,0,9e999,1,1,'"DEFAULT-POOL"','"12"',1000000.0);
INSERT INTO "messages" VALUES(15,217703302299664,1000000.0,2,NULL,1,0,'"DEFAULT-POOL"','"16"',NULL);
INSERT INTO "messages" VALUES(21,217703302299663,1000000.0,0,9e999,1,1,'"DEFAULT-POOL"','"15"',1000000.0);
INSERT INTO "messages" VALUES(24,217703302299673,1000000.0,0,NULL,0,0,'"DEFAULT-POOL"','"25"',NULL);
INSERT INTO "messages" VALUES(27,217703302299672,1000000.0,0,NULL,0,0,'"DEFAULT-POOL"','"24"',NULL);
INSERT INTO "messages" VALUES(31,217703302299679,1000000.0,0,NULL,0,0,'"DEFAULT-POOL"','"31"',NULL);
INSERT INTO "messages" VALUES(32,217703302299680,1000000.0,0,NULL,0,0,'"DEFAULT-POOL"','"32"',NULL);
INSERT INTO "messages" VALUES(32,217703302299681,1000000.0,0,NULL,0,0,'"DEFAULT-POOL"','"33"',NULL);
CREATE TABLE owners (
  owner TEXT PRIMARY KEY
) WITHOUT ROWID;
INSERT INTO "owners" VALUES('1-dead');
CREATE TABLE paused_subscriptions (
  code TEXT PRIMARY KEY,
  paused INTEGER NOT NULL,          -- 0: its lanes are to be unlocked
  walked_to INTEGER                 -- number of the last job whose lane is as it should be; NULL: all are
) WITHOUT ROWID;
INSERT INTO "paused_subscriptions" VALUES('s',1,0);
CREATE TABLE queues (
  name TEXT PRIMARY KEY,
  messages INTEGER NOT NULL  -- how many it holds
, leased INTEGER NOT NULL DEFAULT 0, delayed INTEGER NOT NULL DEFAULT 0) WITHOUT ROWID;
INSERT INTO "queues" VALUES('jobs',12,7,4);
CREATE TABLE store (
  id TEXT NOT NULL,              -- makes broker ids unique when one router uses several files
  last_number INTEGER NOT NULL,  -- newest number ever given to a message, a lane or a turn; none is used again
  time REAL NOT NULL,            -- of the newest change
  boot TEXT NOT NULL,            -- of the machine, for which `clock_offset` is valid
  clock_offset REAL NOT NULL     -- the store's clock is the machine's monotonic one plus this
);
INSERT INTO "store" VALUES('951d0fa6',35,1000000.0,'boot-1',0.0);
CREATE UNIQUE INDEX lanes_by_name ON lanes (queue, name) WHERE name IS NOT NULL;
CREATE UNIQUE INDEX ready_lanes ON lanes (queue, pool, turn) WHERE due IS NULL;
CREATE INDEX locked_lanes ON lanes (queue, due) WHERE due IS NOT NULL;
CREATE INDEX deduplication_by_expiry ON deduplication (expires_at);
CREATE UNIQUE INDEX jobs_by_key ON jobs (idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX jobs_by_group ON jobs (grp, number) WHERE grp IS NOT NULL;
CREATE INDEX jobs_by_code ON jobs (code, number);
CREATE INDEX finished_jobs ON jobs (finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX scheduled_jobs ON jobs (scheduled_for) WHERE entered = 0 AND finished_at IS NULL;
CREATE INDEX expiring_jobs ON jobs (expires_at) WHERE expires_at IS NOT NULL AND finished_at IS NULL;
CREATE UNIQUE INDEX messages_by_position ON messages (seq);
CREATE INDEX actions_by_job ON actions (job, at);
CREATE INDEX lanes_aside ON lanes (grp) WHERE name IS NULL AND grp <> 'null';
CREATE INDEX leased_lanes ON lanes (owner) WHERE owner IS NOT NULL;
CREATE INDEX stopped_groups ON groups (stopped_since, name) WHERE stopped_since IS NOT NULL;
CREATE INDEX going_groups ON groups (name) WHERE stopped_since IS NULL;
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
CREATE INDEX unfinished_jobs ON jobs (status, number) WHERE finished_at IS NULL;
CREATE INDEX unfinished_in_order ON jobs (status, mode, number) WHERE finished_at IS NULL AND mode <> 'IMMEDIATE';
CREATE INDEX parked_jobs ON jobs (number) WHERE status = 'ERROR' AND next_attempt_at IS NULL;
CREATE INDEX ended_jobs ON jobs (status, number) WHERE finished_at IS NOT NULL;
CREATE INDEX jobs_by_time ON jobs (created_at, number);
CREATE INDEX recalled_lanes ON lanes (owner) WHERE recall_epoch IS NOT NULL;
CREATE INDEX unfinished_of_subscription ON jobs (subscription, number)
WHERE subscription IS NOT NULL AND finished_at IS NULL;
CREATE INDEX scheduled_in_groups ON jobs (grp) WHERE entered = 0 AND finished_at IS NULL AND mode <> 'IMMEDIATE';
CREATE UNIQUE INDEX events_by_deduplication ON events (deduplication_id) WHERE deduplication_id IS NOT NULL;
CREATE INDEX events_by_type ON events (type, number);
CREATE INDEX events_by_subject ON events (subject, number) WHERE subject IS NOT NULL;
CREATE INDEX events_by_group ON events (grp, number) WHERE grp IS NOT NULL;
CREATE INDEX events_by_correlation ON events (correlation_id, number) WHERE correlation_id IS NOT NULL;
CREATE INDEX events_by_time ON events (created_at, number);
CREATE INDEX out_lanes ON lanes (pool, out_until) WHERE out_until IS NOT NULL;
COMMIT;
PRAGMA user_version=8;
