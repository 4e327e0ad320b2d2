-- oldest: 2
-- Applications that call for themselves are no longer the users with their ids: their tasks, receipts
-- and contexts get owners of their own, by store/postgres/backfill.py within the same transaction.
LOCK TABLE {schema}.tasks, {schema}.log, {schema}.receipts, {schema}.contexts, {schema}.task_counts;
