-- The rows of small tables.

-- name: listed
-- The texts of a list.
SELECT value FROM json_each(?);

-- name: get_rows
SELECT key, value FROM rows
WHERE name = ? AND key IN (SELECT value FROM json_each(?))
    AND (expires_at IS NULL OR expires_at > ?);

-- name: scan_rows
SELECT key, value FROM rows
WHERE name = ? AND key >= ? AND key > ? AND (expires_at IS NULL OR expires_at > ?)
ORDER BY key LIMIT ?;

-- name: put_row
INSERT INTO rows (name, key, value, expires_at) VALUES (?, ?, ?, ?)
ON CONFLICT (name, key) DO UPDATE SET value = excluded.value, expires_at = excluded.expires_at;

-- name: remove_row
DELETE FROM rows WHERE name = ? AND key = ?;

-- name: remove_expired_rows
DELETE FROM rows WHERE (name, key) IN (
    SELECT name, key FROM rows WHERE expires_at <= ? ORDER BY expires_at LIMIT ?);
