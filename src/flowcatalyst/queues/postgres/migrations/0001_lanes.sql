-- The lanes of queues in PostgreSQL, version 1.
--
-- A lane is what gets locked: one for each group, one for each message that is ordered with nothing. Its row is the lock:
-- whoever adds, takes or settles messages of a lane holds that row, so that a lane's messages become visible in their
-- order, in whichever order their producers commit. Taking messages writes to their lanes only, never to the messages:
-- a lease is a prefix of its lane, up to `leased_to`.
--
-- A lane is ready (neither owner nor due), leased (owner) or delayed (due). A lease has no end of its own: it lasts for as
-- long as its owner lives, and ends with the owner's row. Whether an owner lives is for `owners.py` to say.

CREATE SEQUENCE numbers;  -- of messages, lanes and turns; none is used again

CREATE TABLE store (
  id text NOT NULL  -- makes broker ids unique when one router uses several databases
);
INSERT INTO store VALUES (substr(md5(random()::text || clock_timestamp()::text), 1, 8));

CREATE TABLE queues (
  id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name text COLLATE "C" NOT NULL UNIQUE
);

-- How many messages a queue holds, in parts, so that transactions do not wait for each other to count.
CREATE TABLE counts (
  queue integer NOT NULL,
  part integer NOT NULL,
  messages bigint NOT NULL DEFAULT 0,
  delayed bigint NOT NULL DEFAULT 0,  -- in lanes that are not ready
  PRIMARY KEY (queue, part)
) WITH (fillfactor = 20);

-- Processes that receive. One row each, renewed every second or so instead of a lease for each message.
CREATE TABLE owners (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name text NOT NULL,                       -- host and process, for people
  beat bigint NOT NULL DEFAULT 1,           -- counts renewals: one that stands still is of a process that is dead or cut off
  beat_at timestamptz NOT NULL DEFAULT now(),  -- for people: nothing is judged by it
  waits boolean NOT NULL DEFAULT false,     -- it waits for messages: whoever publishes should notify it
  void_to bigint NOT NULL DEFAULT 0         -- claims up to this one may lease nothing any more
) WITH (fillfactor = 50);

-- One row for each lane that has messages.
CREATE TABLE lanes (
  id bigint PRIMARY KEY,
  queue integer NOT NULL,
  name text COLLATE "C",               -- the group; NULL: a lane of one message
  grp text,                            -- the group as it is handed out, also for a lane of one message
  pool text COLLATE "C" NOT NULL,      -- that its first message names
  turn bigint NOT NULL,                -- a number that it got when it became ready: whoever waits longest comes first
  messages bigint NOT NULL,            -- how many it holds
  head bigint NOT NULL,                -- no message is before this place: what was deleted there is not looked at again
  epoch bigint NOT NULL DEFAULT 0,     -- how often it was leased; older receipts are stale
  leased_to bigint NOT NULL DEFAULT 0, -- place of the last message of the newest lease
  leased integer NOT NULL DEFAULT 0,   -- messages of that lease that are not settled
  delayed integer NOT NULL DEFAULT 0,  -- messages that were given back from it with a delay
  owner bigint,                        -- who holds the lease; NULL: nobody
  claim bigint,                        -- which of its receives made it
  due timestamptz                      -- delayed until then
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000);
CREATE UNIQUE INDEX lanes_by_name ON lanes (queue, name) WHERE name IS NOT NULL;
CREATE INDEX ready_lanes ON lanes (queue, pool, turn) WHERE owner IS NULL AND due IS NULL;
CREATE INDEX delayed_lanes ON lanes (queue, due) WHERE due IS NOT NULL;
CREATE INDEX leased_lanes ON lanes (owner, claim) WHERE owner IS NOT NULL;

CREATE TABLE messages (
  lane bigint NOT NULL,
  seq bigint NOT NULL,                    -- its place in the lane
  published_at timestamptz NOT NULL DEFAULT now(),
  given_back bigint NOT NULL DEFAULT 0,   -- epoch of the lease it was last given back from
  visible_at timestamptz,                 -- when it was given back with a delay: until then
  receives integer NOT NULL DEFAULT 0,    -- deliveries that ended without an ack
  failures integer NOT NULL DEFAULT 0,
  pool text COLLATE "C" NOT NULL,
  body text NOT NULL,
  PRIMARY KEY (lane, seq)
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000);

CREATE TABLE deduplication (
  queue integer NOT NULL,
  id text COLLATE "C" NOT NULL,
  seq bigint NOT NULL,  -- of the message that was accepted
  expires_at timestamptz NOT NULL,
  PRIMARY KEY (queue, id)
);
CREATE INDEX deduplication_by_expiry ON deduplication (expires_at);
