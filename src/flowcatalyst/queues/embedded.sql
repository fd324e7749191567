-- The tables of an embedded store.
--
-- A lane is what gets locked: ["queue","group"] for a group, ["queue",group or null,seq] for a message on its own.
-- Lanes, bodies and deduplication ids are kept as JSON text. So they travel in and out of JSON untouched, odd names
-- cannot collide, and a NUL character survives (SQLite ends a decoded string there).

CREATE TABLE IF NOT EXISTS store (
  id TEXT NOT NULL  -- makes broker ids unique when one router uses several files
);
INSERT INTO store SELECT lower(hex(randomblob(4))) WHERE NOT EXISTS (SELECT 1 FROM store);

CREATE TABLE IF NOT EXISTS messages (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,  -- never reused: receipts and broker ids are made of it
  lane TEXT NOT NULL,
  published_at REAL NOT NULL,
  visible_at REAL,                        -- hidden until then; NULL: visible
  owner TEXT,                             -- whose lease hides it; NULL when it is only delayed
  receives INTEGER NOT NULL DEFAULT 0,
  failures INTEGER NOT NULL DEFAULT 0,
  body TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS messages_by_lane ON messages (lane, seq);
CREATE INDEX IF NOT EXISTS hidden_messages ON messages (lane, visible_at) WHERE visible_at IS NOT NULL;

-- One row for each lane that has messages.
CREATE TABLE IF NOT EXISTS lanes (
  lane TEXT PRIMARY KEY,
  queue TEXT NOT NULL,
  head INTEGER NOT NULL,  -- seq of its first message
  due REAL                -- first visible_at of its hidden messages; NULL: none is hidden, the lane is not locked
) WITHOUT ROWID;
-- Unique, so that walking it needs no sorting by (head, seq).
CREATE UNIQUE INDEX IF NOT EXISTS ready_lanes ON lanes (queue, head) WHERE due IS NULL;
CREATE INDEX IF NOT EXISTS locked_lanes ON lanes (queue, due) WHERE due IS NOT NULL;

CREATE TABLE IF NOT EXISTS deduplication (
  queue TEXT NOT NULL,
  id TEXT NOT NULL,
  seq INTEGER NOT NULL,  -- of the message that was accepted
  expires_at REAL NOT NULL,
  PRIMARY KEY (queue, id)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS deduplication_by_expiry ON deduplication (expires_at);

-- Stores that are open now, or died open.
CREATE TABLE IF NOT EXISTS owners (
  owner TEXT PRIMARY KEY
) WITHOUT ROWID;
