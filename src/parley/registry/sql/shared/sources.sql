-- Sources and their visits. The column source is the whole of it as JSON.

-- name: add_source
INSERT INTO {schema}.sources (url, kind, state, due_at, source)
VALUES (:url, :kind, :state, :due_at, :source)
ON CONFLICT DO NOTHING;

-- name: claim_sources
-- What another process claims at the same time is passed over.
UPDATE {schema}.sources SET claimed_until = :until, claimed_by = :by
WHERE url IN (
    SELECT url FROM {schema}.sources {by_due}
    WHERE due_at <= :now AND claimed_until <= :now AND kind IN ('catalog', 'site', 'file', 'push')
    ORDER BY due_at LIMIT :limit {passing_over})
RETURNING source;

-- name: release_sources
-- Claims of a process that was killed, of a file that no other one has open.
UPDATE {schema}.sources SET claimed_until = 0 WHERE claimed_until > 0;

-- name: renew_source
UPDATE {schema}.sources SET claimed_until = :until
WHERE url = :url AND claimed_by = :by AND claimed_until > 0;

-- name: end_visit
UPDATE {schema}.sources SET kind = :kind, state = :state, due_at = :due_at,
    source = :source,
    claimed_until = CASE WHEN claimed_by = :by THEN 0 ELSE claimed_until END
WHERE url = :url;

-- name: source
SELECT source FROM {schema}.sources WHERE url = :url {locked};

-- name: sources
SELECT source FROM {schema}.sources ORDER BY url LIMIT :limit;

-- name: remove_source
DELETE FROM {schema}.sources WHERE url = :url;
