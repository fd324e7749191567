-- Made by the code of version 1: tests/unit/migrations_test.py says what it holds.
BEGIN TRANSACTION;
CREATE TABLE dead_letters (
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  message_id TEXT NOT NULL,
  queue TEXT NOT NULL,
  group_id TEXT,
  body TEXT NOT NULL,
  reason TEXT NOT NULL,
  status INTEGER,
  excerpt TEXT NOT NULL,
  failures INTEGER NOT NULL,
  recorded_at REAL NOT NULL
);
INSERT INTO "dead_letters" VALUES(1,'m1','q','g','{"id":"m1","mediationTarget":"http://x.test/","authToken":"t"}','HTTP 404',404,'no such order',3,1000000.0);
INSERT INTO "dead_letters" VALUES(3,'m3','q','g','{"id":"m3","mediationTarget":"http://x.test/","authToken":"t"}','HTTP 404',404,'no such order',3,1172800.0);
INSERT INTO "dead_letters" VALUES(4,'m1','q','g','{"id":"m1","mediationTarget":"http://x.test/","authToken":"t"}','HTTP 404',404,'no such order',3,1259200.0);
INSERT INTO "dead_letters" VALUES(5,'','q','g','\xff{','not JSON',NULL,'',0,1259200.0);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('dead_letters',5);
COMMIT;
PRAGMA user_version=1;
