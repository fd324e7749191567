-- What a page, the metrics or the retention ask for is found without reading the letters.

CREATE INDEX dead_letters_by_message ON dead_letters (message_id);
CREATE INDEX dead_letters_by_time ON dead_letters (recorded_at);

-- Kept by triggers, so that it is true whoever writes: an older process that has the file open, a person with a shell.
CREATE TABLE totals (
  dead_letters INTEGER NOT NULL  -- how many there are
);
INSERT INTO totals SELECT count(*) FROM dead_letters;
CREATE TRIGGER dead_letter_added AFTER INSERT ON dead_letters BEGIN
  UPDATE totals SET dead_letters = dead_letters + 1;
END;
CREATE TRIGGER dead_letter_removed AFTER DELETE ON dead_letters BEGIN
  UPDATE totals SET dead_letters = dead_letters - 1;
END;
