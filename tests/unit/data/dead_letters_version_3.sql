-- Made by the code of version 3: tests/unit/migrations_test.py says what it holds.
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
, target TEXT);
INSERT INTO "dead_letters" VALUES(1,'m1','q','g','{"id":"m1","mediationTarget":"http://x.test/","authToken":"t"}','HTTP 404',404,'no such order',3,1000000.0,'http://x.test/');
INSERT INTO "dead_letters" VALUES(3,'m3','q','g','{"id":"m3","mediationTarget":"http://x.test/","authToken":"t"}','HTTP 404',404,'no such order',3,1172800.0,'http://x.test/');
INSERT INTO "dead_letters" VALUES(4,'m1','q','g','{"id":"m1","mediationTarget":"http://x.test/","authToken":"t"}','HTTP 404',404,'no such order',3,1259200.0,'http://x.test/');
INSERT INTO "dead_letters" VALUES(5,'','q','g','\xff{','not JSON',NULL,'',0,1259200.0,'');
CREATE TABLE totals (
  dead_letters INTEGER NOT NULL  -- how many there are
);
INSERT INTO "totals" VALUES(4);
CREATE INDEX dead_letters_by_message ON dead_letters (message_id);
CREATE INDEX dead_letters_by_time ON dead_letters (recorded_at);
CREATE TRIGGER dead_letter_added AFTER INSERT ON dead_letters BEGIN
  UPDATE totals SET dead_letters = dead_letters + 1;
END;
CREATE TRIGGER dead_letter_removed AFTER DELETE ON dead_letters BEGIN
  UPDATE totals SET dead_letters = dead_letters - 1;
END;
CREATE INDEX dead_letters_by_number ON dead_letters (number, queue, group_id, status, recorded_at, target);
CREATE INDEX dead_letters_by_group ON dead_letters (group_id, number, queue, status, recorded_at, target);
CREATE INDEX dead_letters_unread ON dead_letters (number) WHERE target IS NULL;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('dead_letters',5);
COMMIT;
PRAGMA user_version=3;
