-- API keys. {schema} is the schema of the store.

-- piece: api_key_columns
id, digest, owner, label, scopes, created_at, expires_at, revoked_at

-- name: api_key
SELECT {api_key_columns} FROM {schema}.api_keys WHERE id = %s;

-- name: api_keys
-- All keys, or those of an owner, the oldest first.
SELECT {api_key_columns} FROM {schema}.api_keys
WHERE owner = %(owner)s OR %(owner)s = ''
ORDER BY created_at, id;

-- name: lock_api_keys
-- Until the transaction ends nobody else adds a key, so that their number can be limited.
SELECT pg_advisory_xact_lock(hashtextextended('parley api keys {schema}', 0));

-- name: remove_ended_api_keys
-- Remove the keys that ended before a time.
DELETE FROM {schema}.api_keys
WHERE expires_at < %(before)s OR revoked_at < %(before)s;

-- name: add_api_key
-- Add a key while there are fewer than may be.
INSERT INTO {schema}.api_keys ({api_key_columns})
SELECT %(id)s, %(digest)s, %(owner)s, %(label)s, %(scopes)s, %(created_at)s,
    %(expires_at)s::bigint, %(revoked_at)s::bigint
WHERE (SELECT count(*) FROM {schema}.api_keys) < %(limit)s
ON CONFLICT DO NOTHING;

-- name: end_api_key
-- Have a key end earlier: times that it has are never put off.
UPDATE {schema}.api_keys
SET expires_at = least(expires_at, %(expires_at)s::bigint),
    revoked_at = least(revoked_at, %(revoked_at)s::bigint)
WHERE id = %(id)s
RETURNING {api_key_columns};
