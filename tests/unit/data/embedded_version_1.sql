-- Made by the code of version 1, at wall time 1,000,000: tests/unit/embedded_migration_test.py says what it holds.
BEGIN TRANSACTION;
CREATE TABLE deduplication (
  queue TEXT NOT NULL,
  id TEXT NOT NULL,
  seq INTEGER NOT NULL,  -- of the message that was accepted
  expires_at REAL NOT NULL,
  PRIMARY KEY (queue, id)
) WITHOUT ROWID;
INSERT INTO "deduplication" VALUES('orders','"once"',15,1000300.0);
CREATE TABLE lanes (
  id INTEGER PRIMARY KEY,
  queue TEXT NOT NULL,
  name TEXT,                            -- the group; NULL: a lane of one message
  grp TEXT NOT NULL,                    -- the group as it is handed out, also for a lane of one message
  head INTEGER NOT NULL,                -- seq of its first message
  epoch INTEGER NOT NULL DEFAULT 0,     -- how often it was leased; older receipts are stale
  leased_to INTEGER NOT NULL DEFAULT 0, -- seq of the last message of the newest lease
  owner TEXT,                           -- who holds that lease; NULL: nobody
  due REAL                              -- locked until then: its lease ends, or its delays do; NULL: not locked
);
INSERT INTO "lanes" VALUES(1,'orders','"d"','"d"',1,1,2,NULL,1000030.0);
INSERT INTO "lanes" VALUES(2,'orders','"y"','"y"',3,1,3,NULL,32536030.0);
INSERT INTO "lanes" VALUES(3,'orders','"l"','"l"',4,1,5,'1-dead',1000060.0);
INSERT INTO "lanes" VALUES(4,'orders','"u"','"u"',8,1,7,NULL,NULL);
INSERT INTO "lanes" VALUES(5,'orders',NULL,'"u"',7,0,7,NULL,1000020.0);
INSERT INTO "lanes" VALUES(6,'orders','"t"','"t"',14,0,0,NULL,NULL);
INSERT INTO "lanes" VALUES(7,'orders','"s"','"s"',13,0,0,NULL,NULL);
INSERT INTO "lanes" VALUES(8,'orders','"r"','"r"',9,0,0,NULL,NULL);
INSERT INTO "lanes" VALUES(9,'orders',NULL,'null',12,0,0,NULL,NULL);
INSERT INTO "lanes" VALUES(10,'other','"o"','"o"',16,0,0,NULL,NULL);
CREATE TABLE messages (
  lane INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  published_at REAL NOT NULL,
  given_back INTEGER NOT NULL DEFAULT 0,  -- epoch of the lease it was last given back from
  visible_at REAL,                        -- when it was given back with a delay: until then
  receives INTEGER NOT NULL DEFAULT 0,    -- deliveries that ended without an ack
  failures INTEGER NOT NULL DEFAULT 0,
  body TEXT NOT NULL,
  PRIMARY KEY (lane, seq)
) WITHOUT ROWID;
INSERT INTO "messages" VALUES(1,1,1000000.0,1,1000030.0,1,3,'"{\"id\": \"d1\", \"poolCode\": \"A\"}"');
INSERT INTO "messages" VALUES(1,2,1000000.0,1,1000010.0,1,0,'"{\"id\": \"d2\", \"poolCode\": \"A\"}"');
INSERT INTO "messages" VALUES(2,3,1000000.0,1,32536030.0,1,0,'"{\"id\": \"y1\", \"poolCode\": \"A\"}"');
INSERT INTO "messages" VALUES(3,4,1000000.0,0,NULL,0,0,'"{\"id\": \"l1\", \"poolCode\": \"A\"}"');
INSERT INTO "messages" VALUES(3,5,1000000.0,0,NULL,0,0,'"{\"id\": \"l2\", \"poolCode\": \"B\"}"');
INSERT INTO "messages" VALUES(3,6,1000000.0,0,NULL,0,0,'"{\"id\": \"l3\", \"poolCode\": \"A\"}"');
INSERT INTO "messages" VALUES(4,8,1000000.0,0,NULL,0,0,'"{\"id\": \"u2\", \"poolCode\": \"A\"}"');
INSERT INTO "messages" VALUES(5,7,1000000.0,0,1000020.0,1,0,'"{\"id\": \"u1\", \"poolCode\": \"A\"}"');
INSERT INTO "messages" VALUES(6,14,1000000.0,0,NULL,0,0,'"no pointer \u0000"');
INSERT INTO "messages" VALUES(6,15,1000000.0,0,NULL,0,0,'"{\"poolCode\": \"B\", \"id\": \"t2\"}"');
INSERT INTO "messages" VALUES(7,13,1000000.0,0,NULL,0,0,'"{\"id\": \"s1\"}"');
INSERT INTO "messages" VALUES(8,9,1000000.0,0,NULL,0,0,'"{\"id\": \"r1\", \"poolCode\": \"A\"}"');
INSERT INTO "messages" VALUES(8,10,1000000.0,0,NULL,0,0,'"{\"id\": \"r2\", \"poolCode\": \"B\"}"');
INSERT INTO "messages" VALUES(8,11,1000000.0,0,NULL,0,0,'"{\"id\": \"r3\", \"poolCode\": \"A\"}"');
INSERT INTO "messages" VALUES(9,12,1000000.0,0,NULL,0,0,'"{\"id\": \"x1\", \"poolCode\": \"A\"}"');
INSERT INTO "messages" VALUES(10,16,1000000.0,0,NULL,0,0,'"{\"id\": \"o1\", \"poolCode\": \"A\"}"');
CREATE TABLE owners (
  owner TEXT PRIMARY KEY
) WITHOUT ROWID;
INSERT INTO "owners" VALUES('1-dead');
CREATE TABLE store (
  id TEXT NOT NULL,          -- makes broker ids unique when one router uses several files
  last_seq INTEGER NOT NULL  -- of the newest message ever; never reused, since broker ids are made of it
);
INSERT INTO "store" VALUES('b957df0a',16);
CREATE UNIQUE INDEX lanes_by_name ON lanes (queue, name) WHERE name IS NOT NULL;
CREATE UNIQUE INDEX ready_lanes ON lanes (queue, head) WHERE due IS NULL;
CREATE INDEX locked_lanes ON lanes (queue, due) WHERE due IS NOT NULL;
CREATE INDEX deduplication_by_expiry ON deduplication (expires_at);
COMMIT;
PRAGMA user_version=1;
