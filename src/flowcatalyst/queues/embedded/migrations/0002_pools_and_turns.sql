-- The tables of an embedded store, version 2: messages and lanes know their pool, lanes their turn, queues their size.
--
-- A lane is what gets locked: one for each group, one for each message that is ordered with nothing. Taking messages
-- writes to their lane only, never to the messages: a lease is a prefix of its lane, up to `leased_to`.
--
-- Groups, pools, bodies and deduplication ids are kept as JSON text. So they travel in and out of JSON untouched, odd
-- names cannot collide, and a NUL character survives (SQLite ends a decoded string there).
--
-- Times are seconds on the store's own clock, which nobody can set: see `EmbeddedStore.now`.

DROP INDEX lanes_by_name;
DROP INDEX ready_lanes;
DROP INDEX locked_lanes;
DROP INDEX deduplication_by_expiry;
ALTER TABLE store RENAME TO store_1;
ALTER TABLE lanes RENAME TO lanes_1;
ALTER TABLE messages RENAME TO messages_1;
ALTER TABLE deduplication RENAME TO deduplication_1;

CREATE TABLE store (
  id TEXT NOT NULL,              -- makes broker ids unique when one router uses several files
  last_number INTEGER NOT NULL,  -- newest number ever given to a message, a lane or a turn; none is used again
  time REAL NOT NULL,            -- of the newest change
  boot TEXT NOT NULL,            -- of the machine, for which `clock_offset` is valid
  clock_offset REAL NOT NULL     -- the store's clock is the machine's monotonic one plus this
);

CREATE TABLE queues (
  name TEXT PRIMARY KEY,
  messages INTEGER NOT NULL  -- how many it holds
) WITHOUT ROWID;

-- One row for each lane that has messages.
CREATE TABLE lanes (
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
CREATE UNIQUE INDEX lanes_by_name ON lanes (queue, name) WHERE name IS NOT NULL;
-- Unique, so that walking it needs no sorting by (turn, seq).
CREATE UNIQUE INDEX ready_lanes ON lanes (queue, pool, turn) WHERE due IS NULL;
CREATE INDEX locked_lanes ON lanes (queue, due) WHERE due IS NOT NULL;

-- Clustered by lane: what is taken and deleted together lies together, so that a commit writes few pages.
CREATE TABLE messages (
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

CREATE TABLE deduplication (
  queue TEXT NOT NULL,
  id TEXT NOT NULL,
  seq INTEGER NOT NULL,  -- of the message that was accepted
  expires_at REAL NOT NULL,
  PRIMARY KEY (queue, id)
) WITHOUT ROWID;
CREATE INDEX deduplication_by_expiry ON deduplication (expires_at);

-- Times were wall times until now: the store's clock begins there.
INSERT INTO store (id, last_number, time, boot, clock_offset)
  SELECT id, max(last_seq, (SELECT ifnull(max(id), 0) FROM lanes_1)), :wall, '', 0 FROM store_1;
INSERT INTO messages (lane, seq, published_at, given_back, visible_at, receives, failures, pool, body)
  SELECT lane, seq, published_at, given_back, min(visible_at, :latest), receives, failures, pool_in(body), body
  FROM messages_1;
INSERT INTO lanes (id, queue, name, grp, pool, turn, epoch, leased_to, owner, due)
  SELECT id, queue, name, grp, (SELECT pool FROM messages WHERE lane = lanes_1.id ORDER BY seq LIMIT 1), head,
    epoch, leased_to, owner, min(due, :latest)
  FROM lanes_1;
INSERT INTO queues (name, messages)
  SELECT queue, count(*) FROM lanes AS l CROSS JOIN messages AS m ON m.lane = l.id GROUP BY queue;
INSERT INTO deduplication (queue, id, seq, expires_at)
  SELECT queue, id, seq, min(expires_at, :wall + 300) FROM deduplication_1;
DROP TABLE store_1;
DROP TABLE lanes_1;
DROP TABLE messages_1;
DROP TABLE deduplication_1;
