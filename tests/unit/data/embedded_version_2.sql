-- Made by the code of version 2, at wall time 1,000,000 and 0 on the store's clock: embedded_migration_test.py says what it holds.
BEGIN TRANSACTION;
CREATE TABLE deduplication (
  queue TEXT NOT NULL,
  id TEXT NOT NULL,
  seq INTEGER NOT NULL,  -- of the message that was accepted
  expires_at REAL NOT NULL,
  PRIMARY KEY (queue, id)
) WITHOUT ROWID;
INSERT INTO "deduplication" VALUES('orders','"once"',21,300.0);
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
);
INSERT INTO "lanes" VALUES(1,'orders','"d"','"d"','"A"',4,1,2,NULL,30.0);
INSERT INTO "lanes" VALUES(5,'orders','"u"','"u"','"A"',15,3,6,NULL,NULL);
INSERT INTO "lanes" VALUES(7,'orders',NULL,'"u"','"A"',7,0,5,NULL,20.0);
INSERT INTO "lanes" VALUES(12,'orders','"l"','"l"','"A"',12,1,12,'1-dead',60.0);
INSERT INTO "lanes" VALUES(16,'orders','"r"','"r"','"A"',16,0,0,NULL,NULL);
INSERT INTO "lanes" VALUES(19,'orders',NULL,'null','"A"',19,0,0,NULL,NULL);
INSERT INTO "lanes" VALUES(20,'orders','"t"','"t"','""',20,0,0,NULL,NULL);
INSERT INTO "lanes" VALUES(22,'other','"o"','"o"','"A"',22,0,0,NULL,NULL);
CREATE TABLE messages (
  lane INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  published_at REAL NOT NULL,             -- wall time, for people who look into the file
  given_back INTEGER NOT NULL DEFAULT 0,  -- epoch of the lease it was last given back from
  visible_at REAL,                        -- when it was given back with a delay: until then
  receives INTEGER NOT NULL DEFAULT 0,    -- deliveries that ended without an ack
  failures INTEGER NOT NULL DEFAULT 0,
  pool TEXT NOT NULL,
  body TEXT NOT NULL,
  PRIMARY KEY (lane, seq)
) WITHOUT ROWID;
INSERT INTO "messages" VALUES(1,1,1000000.0,1,30.0,1,3,'"A"','"{\"id\": \"d1\", \"poolCode\": \"A\"}"');
INSERT INTO "messages" VALUES(1,2,1000000.0,1,10.0,1,0,'"A"','"{\"id\": \"d2\", \"poolCode\": \"A\"}"');
INSERT INTO "messages" VALUES(5,6,1000000.0,3,NULL,3,0,'"A"','"{\"id\": \"u2\", \"poolCode\": \"A\"}"');
INSERT INTO "messages" VALUES(7,5,1000000.0,0,20.0,1,0,'"A"','"{\"id\": \"u1\", \"poolCode\": \"A\"}"');
INSERT INTO "messages" VALUES(12,12,1000000.0,0,NULL,0,0,'"A"','"{\"id\": \"l1\", \"poolCode\": \"A\"}"');
INSERT INTO "messages" VALUES(12,13,1000000.0,0,NULL,0,0,'"B"','"{\"id\": \"l2\", \"poolCode\": \"B\"}"');
INSERT INTO "messages" VALUES(12,14,1000000.0,0,NULL,0,0,'"A"','"{\"id\": \"l3\", \"poolCode\": \"A\"}"');
INSERT INTO "messages" VALUES(16,16,1000000.0,0,NULL,0,0,'"A"','"{\"id\": \"r1\", \"poolCode\": \"A\"}"');
INSERT INTO "messages" VALUES(16,17,1000000.0,0,NULL,0,0,'"B"','"{\"id\": \"r2\", \"poolCode\": \"B\"}"');
INSERT INTO "messages" VALUES(16,18,1000000.0,0,NULL,0,0,'"A"','"{\"id\": \"r3\", \"poolCode\": \"A\"}"');
INSERT INTO "messages" VALUES(19,19,1000000.0,0,NULL,0,0,'"A"','"{\"id\": \"x1\", \"poolCode\": \"A\"}"');
INSERT INTO "messages" VALUES(20,20,1000000.0,0,NULL,0,0,'""','"no pointer \u0000"');
INSERT INTO "messages" VALUES(20,21,1000000.0,0,NULL,0,0,'"B"','"{\"id\": \"t2\", \"poolCode\": \"B\"}"');
INSERT INTO "messages" VALUES(22,22,1000000.0,0,NULL,0,0,'"A"','"{\"id\": \"o1\", \"poolCode\": \"A\"}"');
CREATE TABLE owners (
  owner TEXT PRIMARY KEY
) WITHOUT ROWID;
INSERT INTO "owners" VALUES('1-dead');
CREATE TABLE queues (
  name TEXT PRIMARY KEY,
  messages INTEGER NOT NULL  -- how many it holds
) WITHOUT ROWID;
INSERT INTO "queues" VALUES('orders',13);
INSERT INTO "queues" VALUES('other',1);
CREATE TABLE store (
  id TEXT NOT NULL,              -- makes broker ids unique when one router uses several files
  last_number INTEGER NOT NULL,  -- newest number ever given to a message, a lane or a turn; none is used again
  time REAL NOT NULL,            -- of the newest change
  boot TEXT NOT NULL,            -- of the machine, for which `clock_offset` is valid
  clock_offset REAL NOT NULL     -- the store's clock is the machine's monotonic one plus this
);
INSERT INTO "store" VALUES('25dd2622',22,0.0,'boot-1',-1000000.0);
CREATE UNIQUE INDEX lanes_by_name ON lanes (queue, name) WHERE name IS NOT NULL;
CREATE UNIQUE INDEX ready_lanes ON lanes (queue, pool, turn) WHERE due IS NULL;
CREATE INDEX locked_lanes ON lanes (queue, due) WHERE due IS NOT NULL;
CREATE INDEX deduplication_by_expiry ON deduplication (expires_at);
COMMIT;
PRAGMA user_version=2;
