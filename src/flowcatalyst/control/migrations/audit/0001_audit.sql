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
CREATE INDEX audit_by_action ON audit (action, number);
