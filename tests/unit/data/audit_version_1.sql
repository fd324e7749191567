-- Made by the code of version 1: tests/unit/migrations_test.py says what it holds.
BEGIN TRANSACTION;
CREATE TABLE audit (
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  at REAL NOT NULL,
  until REAL NOT NULL,
  action TEXT NOT NULL,
  who TEXT NOT NULL,
  role TEXT,
  address TEXT,
  forwarded_for TEXT,
  object TEXT NOT NULL,
  detail TEXT NOT NULL,
  count INTEGER,
  requests INTEGER NOT NULL
);
INSERT INTO "audit" VALUES(1,1000000.0,1000000.0,'pool_change','ann','admin','10.0.0.1',NULL,'pool A','concurrency 5 -> 10',1,1);
INSERT INTO "audit" VALUES(2,1000000.0,1000005.0,'publish','bob','admin','10.0.0.2','192.0.2.1','queue orders','',12,2);
INSERT INTO "audit" VALUES(3,1000005.0,1000005.0,'dead_letter_delete','ann','admin','10.0.0.1',NULL,'dead letter 2','message m2 of queue q',1,1);
CREATE INDEX audit_by_action ON audit (action, number);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('audit',3);
COMMIT;
PRAGMA user_version=1;
