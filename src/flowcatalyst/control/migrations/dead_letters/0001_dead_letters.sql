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
