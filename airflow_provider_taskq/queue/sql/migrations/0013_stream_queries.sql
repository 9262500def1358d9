-- Whose batches a stream's are: a query that begins a new checkpoint numbers its batches anew, and these are no replays.
ALTER TABLE taskq.stream ADD COLUMN query text;  -- the number that the checkpoint has; NULL: numbered by hand, or not known
