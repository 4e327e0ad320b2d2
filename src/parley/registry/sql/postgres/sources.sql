-- Sources and their visits. The column source is the whole of it as JSON.

-- name: add_source
INSERT INTO {schema}.sources (url, kind, state, due_at, source)
VALUES (%(url)s, %(kind)s, %(state)s, %(due_at)s, %(source)s)
ON CONFLICT DO NOTHING;

-- name: claim_sources
-- What another process claims at the same time is passed over.
UPDATE {schema}.sources SET claimed_until = %(until)s, claimed_by = %(by)s
WHERE url IN (
    SELECT url FROM {schema}.sources
    WHERE due_at <= %(now)s AND claimed_until <= %(now)s AND kind IN ('catalog', 'site', 'file', 'push')
    ORDER BY due_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED)
RETURNING source;

-- name: renew_source
UPDATE {schema}.sources SET claimed_until = %(until)s
WHERE url = %(url)s AND claimed_by = %(by)s AND claimed_until > 0;

-- name: end_visit
UPDATE {schema}.sources SET kind = %(kind)s, state = %(state)s, due_at = %(due_at)s,
    source = %(source)s,
    claimed_until = CASE WHEN claimed_by = %(by)s THEN 0 ELSE claimed_until END
WHERE url = %(url)s;

-- name: source
SELECT source FROM {schema}.sources WHERE url = %(url)s FOR UPDATE;

-- name: sources
SELECT source FROM {schema}.sources ORDER BY url LIMIT %(limit)s;

-- name: sources_in_state
SELECT source FROM {schema}.sources WHERE state = %(state)s ORDER BY url LIMIT %(limit)s;

-- name: remove_source
DELETE FROM {schema}.sources WHERE url = %(url)s;
