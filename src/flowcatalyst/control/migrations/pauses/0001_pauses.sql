-- What people told the router not to start.

CREATE TABLE pauses (
  kind TEXT NOT NULL,   -- POOL, ENDPOINT, GROUP
  name TEXT NOT NULL,
  paused_by TEXT NOT NULL,
  since REAL NOT NULL,  -- wall time
  PRIMARY KEY (kind, name)
) WITHOUT ROWID;
