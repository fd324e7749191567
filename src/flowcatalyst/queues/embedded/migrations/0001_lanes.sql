-- The tables of an embedded store, version 1.
--
-- A lane is what gets locked: one for each group, one for each message that is ordered with nothing. Taking messages
-- writes to their lane only, never to the messages: a lease is a prefix of its lane, up to `leased_to`.
--
-- Groups, bodies and deduplication ids are kept as JSON text. So they travel in and out of JSON untouched, odd names
-- cannot collide, and a NUL character survives (SQLite ends a decoded string there).

CREATE TABLE store (
  id TEXT NOT NULL,          -- makes broker ids unique when one router uses several files
  last_seq INTEGER NOT NULL  -- of the newest message ever; never reused, since broker ids are made of it
);
INSERT INTO store VALUES (lower(hex(randomblob(4))), 0);

-- One row for each lane that has messages.
CREATE TABLE lanes (
  id INTEGER PRIMARY KEY,
  queue TEXT NOT NULL,
  name TEXT,                            -- the group; NULL: a lane of one message
  grp TEXT NOT NULL,                    -- the group as it is handed out, also for a lane of one message
  head INTEGER NOT NULL,                -- seq of its first message
  epoch INTEGER NOT NULL DEFAULT 0,     -- how often it was leased; older receipts are stale
  leased_to INTEGER NOT NULL DEFAULT 0, -- seq of the last message of the newest lease
  owner TEXT,                           -- who holds that lease; NULL: nobody
  due REAL                              -- locked until then: its lease ends, or its delays do; NULL: not locked
);
CREATE UNIQUE INDEX lanes_by_name ON lanes (queue, name) WHERE name IS NOT NULL;
-- Unique, so that walking it needs no sorting by (head, seq).
CREATE UNIQUE INDEX ready_lanes ON lanes (queue, head) WHERE due IS NULL;
CREATE INDEX locked_lanes ON lanes (queue, due) WHERE due IS NOT NULL;

-- Clustered by lane: what is taken and deleted together lies together, so that a commit writes few pages.
CREATE TABLE messages (
  lane INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  published_at REAL NOT NULL,
  given_back INTEGER NOT NULL DEFAULT 0,  -- epoch of the lease it was last given back from
  visible_at REAL,                        -- when it was given back with a delay: until then
  receives INTEGER NOT NULL DEFAULT 0,    -- deliveries that ended without an ack
  failures INTEGER NOT NULL DEFAULT 0,
  body TEXT NOT NULL,
  PRIMARY KEY (lane, seq)
) WITHOUT ROWID;

CREATE TABLE deduplication (
  queue TEXT NOT NULL,
  id TEXT NOT NULL,
  seq INTEGER NOT NULL,  -- of the message that was accepted
  expires_at REAL NOT NULL,
  PRIMARY KEY (queue, id)
) WITHOUT ROWID;
CREATE INDEX deduplication_by_expiry ON deduplication (expires_at);

-- Stores that are open now, or died open.
CREATE TABLE owners (
  owner TEXT PRIMARY KEY
) WITHOUT ROWID;
