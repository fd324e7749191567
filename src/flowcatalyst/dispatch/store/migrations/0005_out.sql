-- Version 5 of the tables of a job store: jobs that are out with routers on other machines.

-- The lease in which the message at `leased_to` was, or is being, published; and, when it was handed over, until when nothing
-- of the lane starts unless somebody claims it.
ALTER TABLE lanes ADD COLUMN out_epoch INTEGER;
ALTER TABLE lanes ADD COLUMN out_until REAL;
CREATE INDEX out_lanes ON lanes (pool, out_until) WHERE out_until IS NOT NULL;
