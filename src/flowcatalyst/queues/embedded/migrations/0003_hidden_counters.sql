-- How many messages are leased and delayed is known without looking at them, for each lane and for each queue.
--
-- A message is delayed from when it was given back with a delay until its lane is ready again. A lane that is ready has
-- neither leased nor delayed messages; one whose `due` has passed counts them until somebody makes it ready.

ALTER TABLE lanes ADD COLUMN leased INTEGER NOT NULL DEFAULT 0;
ALTER TABLE lanes ADD COLUMN delayed INTEGER NOT NULL DEFAULT 0;
ALTER TABLE queues ADD COLUMN leased INTEGER NOT NULL DEFAULT 0;
ALTER TABLE queues ADD COLUMN delayed INTEGER NOT NULL DEFAULT 0;

UPDATE lanes SET
  leased = CASE WHEN owner IS NULL THEN 0 ELSE (
    SELECT count(*) FROM messages WHERE lane = lanes.id AND seq <= leased_to AND given_back <> epoch) END,
  delayed = (
    SELECT count(visible_at) FROM messages WHERE lane = lanes.id AND seq <= leased_to AND given_back = epoch)
WHERE due IS NOT NULL;
UPDATE queues SET leased = counted.leased, delayed = counted.delayed
FROM (SELECT queue, sum(leased) AS leased, sum(delayed) AS delayed FROM lanes WHERE due IS NOT NULL GROUP BY queue) AS counted
WHERE name = counted.queue;
