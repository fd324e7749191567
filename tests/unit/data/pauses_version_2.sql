-- Made by the code of version 2: tests/unit/migrations_test.py says what it holds.
BEGIN TRANSACTION;
CREATE TABLE pauses (
  kind TEXT NOT NULL,   -- POOL, ENDPOINT, GROUP
  name TEXT NOT NULL,
  paused_by TEXT NOT NULL,
  since REAL NOT NULL,  -- wall time
  PRIMARY KEY (kind, name)
) WITHOUT ROWID;
INSERT INTO "pauses" VALUES('ENDPOINT','http://a.test/hook','bob',1000005.0);
INSERT INTO "pauses" VALUES('GROUP','g','ann',1000010.0);
INSERT INTO "pauses" VALUES('POOL','A','ann',1000000.0);
CREATE TABLE skips (
  broker_id TEXT NOT NULL PRIMARY KEY,
  reason TEXT NOT NULL
) WITHOUT ROWID;
INSERT INTO "skips" VALUES('17','skipped by ann');
COMMIT;
PRAGMA user_version=2;
