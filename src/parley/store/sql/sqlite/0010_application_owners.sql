-- Applications that call for themselves are no longer the users with their ids: their tasks, receipts
-- and contexts get owners of their own, by store/sqlite/backfill.py within the same transaction.
-- Counts are made again there.
DELETE FROM task_counts;
