-- What a new connection asks and sets.

-- name: backend_pid
-- The process that serves the session. Behind a pooler it is another than the client was told.
SELECT pg_backend_pid();

-- name: history
-- The database system, and its timeline: a promotion begins the next. NULL on a standby.
SELECT system_identifier::text, CASE WHEN NOT pg_is_in_recovery() THEN
    ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int END
FROM pg_control_system();

-- name: configure_session
-- Plans are kept while tables grow: one that was made for an empty table must not read the whole
-- of it. To plan a small group anew takes as long as to write it.
SET enable_seqscan = off;
SET jit = off;
SET plan_cache_mode = force_generic_plan;

-- name: probe
SELECT 1;

-- name: count_prepared
SELECT count(*) FROM pg_prepared_statements WHERE name = %s;

-- name: deallocate
DEALLOCATE {name};
