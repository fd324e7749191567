-- The tables of an embedded store, version 2.
--
-- A lane is what gets locked: one for each group, one for each message that is ordered with nothing. Taking messages
-- writes to their lane only, never to the messages: a lease is a prefix of its lane, up to `leased_to`.
--
-- Groups, pools, bodies and deduplication ids are kept as JSON text. So they travel in and out of JSON untouched, odd
-- names cannot collide, and a NUL character survives (SQLite ends a decoded string there).
--
-- Times are seconds on the store's own clock, which nobody can set: see `EmbeddedStore.now`.

CREATE TABLE IF NOT EXISTS store (
  id TEXT NOT NULL,              -- makes broker ids unique when one router uses several files
  last_number INTEGER NOT NULL,  -- newest number ever given to a message, a lane or a turn; none is used again
  time REAL NOT NULL,            -- of the newest change
  boot TEXT NOT NULL,            -- of the machine, for which `clock_offset` is valid
  clock_offset REAL NOT NULL     -- the store's clock is the machine's monotonic one plus this
);
INSERT INTO store SELECT lower(hex(randomblob(4))), 0, 0, '', 0 WHERE NOT EXISTS (SELECT 1 FROM store);

CREATE TABLE IF NOT EXISTS queues (
  name TEXT PRIMARY KEY,
  messages INTEGER NOT NULL  -- how many it holds
) WITHOUT ROWID;

-- One row for each lane that has messages.
CREATE TABLE IF NOT EXISTS lanes (
  id INTEGER PRIMARY KEY,               -- number of the message it was made for
  queue TEXT NOT NULL,
  name TEXT,                            -- the group; NULL: a lane of one message
  grp TEXT NOT NULL,                    -- the group as it is handed out, also for a lane of one message
  pool TEXT NOT NULL,                   -- that its first message names
  turn INTEGER NOT NULL,                -- a number that it got when it became ready: whoever waits longest comes first
  epoch INTEGER NOT NULL DEFAULT 0,     -- how often it was leased; older receipts are stale
  leased_to INTEGER NOT NULL DEFAULT 0, -- seq of the last message of the newest lease
  owner TEXT,                           -- who holds that lease; NULL: nobody
  due REAL                              -- locked until then: its lease ends, or its delays do; NULL: ready
);
CREATE UNIQUE INDEX IF NOT EXISTS lanes_by_name ON lanes (queue, name) WHERE name IS NOT NULL;
-- Unique, so that walking it needs no sorting by (turn, seq).
CREATE UNIQUE INDEX IF NOT EXISTS ready_lanes ON lanes (queue, pool, turn) WHERE due IS NULL;
CREATE INDEX IF NOT EXISTS locked_lanes ON lanes (queue, due) WHERE due IS NOT NULL;

-- Clustered by lane: what is taken and deleted together lies together, so that a commit writes few pages.
CREATE TABLE IF NOT EXISTS messages (
  lane INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  published_at REAL NOT NULL,             -- wall time, for people who look into the file
  given_back INTEGER NOT NULL DEFAULT 0,  -- epoch of the lease it was last given back from
  visible_at REAL,                        -- when it was given back with a delay: until then
  receives INTEGER NOT NULL DEFAULT 0,    -- deliveries that ended without an ack
  failures INTEGER NOT NULL DEFAULT 0,
  pool TEXT NOT NULL,
  body TEXT NOT NULL,
  PRIMARY KEY (lane, seq)
) WITHOUT ROWID;

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
