-- API keys.

-- piece: api_key_columns
id, digest, owner, label, scopes, created_at, expires_at, revoked_at

-- name: api_key
SELECT {api_key_columns} FROM api_keys WHERE id = ?;

-- name: api_keys
-- All keys, or those of an owner, the oldest first.
SELECT {api_key_columns} FROM api_keys
WHERE owner = :owner OR :owner = ''
ORDER BY created_at, id;

-- name: count_api_keys
-- All keys, and those of them that ended before a time.
SELECT count(*), count(*) FILTER (WHERE expires_at < :before OR revoked_at < :before) FROM api_keys;

-- name: add_api_key
INSERT INTO api_keys ({api_key_columns})
VALUES (:id, :digest, :owner, :label, :scopes, :created_at, :expires_at, :revoked_at);

-- name: end_api_key
UPDATE api_keys SET expires_at = :expires_at, revoked_at = :revoked_at WHERE id = :id;

-- name: remove_ended_api_keys
-- Remove the keys that ended before a time.
DELETE FROM api_keys WHERE expires_at < :before OR revoked_at < :before;
