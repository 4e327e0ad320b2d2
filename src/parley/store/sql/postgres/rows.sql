-- The rows of small tables. {schema} is the schema of the store.

-- name: lock_rows
-- Until the transaction ends nobody else locks these keys. The statement after this one sees all that
-- others did before.
SELECT pg_advisory_xact_lock(hashtextextended('parley row {schema} ' || %s || ' ' || key, 0))
FROM (SELECT key FROM unnest(%s::text[]) AS k (key) ORDER BY key) keys;

-- name: listed
-- The texts of a list, which is JSON.
SELECT jsonb_array_elements_text(%s::jsonb);

-- name: get_rows
SELECT key, value FROM {schema}.rows
WHERE name = %s AND key = ANY(%s::text[]) AND (expires_at IS NULL OR expires_at > %s);

-- name: scan_rows
SELECT key, value FROM {schema}.rows
WHERE name = %s AND key >= %s AND key > %s AND (expires_at IS NULL OR expires_at > %s)
ORDER BY key LIMIT %s;

-- name: put_rows
INSERT INTO {schema}.rows (name, key, value, expires_at)
SELECT %s, p.key, p.value, p.expires_at
FROM unnest(%s::text[], %s::bytea[], %s::bigint[]) AS p (key, value, expires_at)
ON CONFLICT (name, key) DO UPDATE SET value = excluded.value, expires_at = excluded.expires_at;

-- name: remove_rows
DELETE FROM {schema}.rows WHERE name = %s AND key = ANY(%s::text[]);

-- name: remove_expired_rows
-- Rows that others are changing stay.
DELETE FROM {schema}.rows r USING (
    SELECT name, key FROM {schema}.rows WHERE expires_at <= %s
    ORDER BY expires_at LIMIT %s FOR UPDATE SKIP LOCKED) e
WHERE r.name = e.name AND r.key = e.key;

-- name: note_change
-- The last statement of a change: the writer's row says that it was committed, in case the answer is
-- lost. No row: the writer is fenced.
WITH {writer}
UPDATE {schema}.replicas r SET grp = %(grp)s, missed = '{}', noted = '{}'
FROM me WHERE r.id = %(replica)s
RETURNING 1;
