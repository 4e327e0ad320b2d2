-- The inbox of a receiver of notifications: a file of its own, which several processes may use.
-- Times are seconds since the epoch.

-- name: configure
PRAGMA synchronous = FULL;

-- name: keep_journal
-- No write-ahead log: SQLite before 3.51.3 may lose data of one that several processes write.
PRAGMA journal_mode = TRUNCATE;

-- name: wait_for_lock
PRAGMA busy_timeout = 5000;

-- name: create_handled
CREATE TABLE IF NOT EXISTS inbox_handled (
    id TEXT PRIMARY KEY, expires_at REAL NOT NULL
) WITHOUT ROWID;

-- name: create_expiry
CREATE INDEX IF NOT EXISTS inbox_handled_by_expiry ON inbox_handled (expires_at);

-- name: create_lanes
CREATE TABLE IF NOT EXISTS inbox_lanes (
    lane TEXT PRIMARY KEY, holder TEXT NOT NULL, expires_at REAL NOT NULL
) WITHOUT ROWID;

-- name: is_handled
SELECT 1 FROM inbox_handled WHERE id = ? AND expires_at > ?;

-- name: take_lane
-- Changes no row if another holds the lane.
INSERT INTO inbox_lanes (lane, holder, expires_at) VALUES (?1, ?2, ?3)
ON CONFLICT (lane) DO UPDATE SET holder = excluded.holder, expires_at = excluded.expires_at
WHERE inbox_lanes.holder = excluded.holder OR inbox_lanes.expires_at <= ?4;

-- name: remember
INSERT INTO inbox_handled (id, expires_at) VALUES (?, ?)
ON CONFLICT (id) DO UPDATE SET expires_at = excluded.expires_at;

-- name: release
DELETE FROM inbox_lanes WHERE lane = ? AND holder = ?;

-- name: renew
UPDATE inbox_lanes SET expires_at = ? WHERE lane = ? AND holder = ?;

-- name: prune_handled
DELETE FROM inbox_handled WHERE id IN (
    SELECT id FROM inbox_handled WHERE expires_at <= ? ORDER BY expires_at LIMIT 10000
);

-- name: prune_lanes
DELETE FROM inbox_lanes WHERE expires_at <= ?;
