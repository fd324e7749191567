-- Version 3 of the tables of a job store: what a router has in hand and did not start can be asked back.

-- The lease that somebody wants back, until its router answered; and until when nothing more of the lane is handed out, so
-- that whoever asked can act on what came back.
ALTER TABLE lanes ADD COLUMN recall_epoch INTEGER;
ALTER TABLE lanes ADD COLUMN recalled_until REAL;
CREATE INDEX recalled_lanes ON lanes (owner) WHERE recall_epoch IS NOT NULL;
