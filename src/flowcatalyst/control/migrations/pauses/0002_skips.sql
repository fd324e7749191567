-- Messages that people gave up and that are not settled yet.

CREATE TABLE skips (
  broker_id TEXT NOT NULL PRIMARY KEY,
  reason TEXT NOT NULL
) WITHOUT ROWID;
