-- Letters are filtered without reading them: their bodies are long, and what comes after a body in a row is far away.

ALTER TABLE dead_letters ADD COLUMN target TEXT;  -- its endpoint, empty if it is not known; NULL: nobody looked yet
CREATE INDEX dead_letters_by_number ON dead_letters (number, queue, group_id, status, recorded_at, target);
CREATE INDEX dead_letters_by_group ON dead_letters (group_id, number, queue, status, recorded_at, target);
CREATE INDEX dead_letters_unread ON dead_letters (number) WHERE target IS NULL;  -- an older version left them
