-- Settings of connections, what is asked when a file is opened, and the versions of its schema.

-- name: is_empty
SELECT count(*) = 0 FROM sqlite_master;

-- name: application_id
PRAGMA application_id;

-- name: quick_check
PRAGMA quick_check(1);

-- name: integrity_check
PRAGMA integrity_check(1);

-- name: use_wal
PRAGMA journal_mode = WAL;

-- name: configure_writer
PRAGMA synchronous = {synchronous};
PRAGMA cache_size = -{cache_kib};
PRAGMA journal_size_limit = {wal_bytes};
PRAGMA wal_autocheckpoint = 4000;
PRAGMA application_id = {application_id};

-- name: configure_reader
PRAGMA query_only = 1;
PRAGMA wal_autocheckpoint = 0;
PRAGMA cache_size = -{cache_kib};

-- name: busy_timeout
PRAGMA busy_timeout;

-- name: set_busy_timeout
PRAGMA busy_timeout = {ms};

-- name: truncate_wal
PRAGMA wal_checkpoint(TRUNCATE);

-- name: create_versions
CREATE TABLE IF NOT EXISTS schema_versions (
    version INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_at TEXT NOT NULL);

-- name: has_versions
SELECT count(*) FROM sqlite_master WHERE name = 'schema_versions';

-- name: version
SELECT coalesce(max(version), 0) FROM schema_versions;

-- name: add_version
INSERT INTO schema_versions VALUES (?, ?, datetime('now'));
