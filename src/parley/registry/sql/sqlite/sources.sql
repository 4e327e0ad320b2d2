-- Sources and their visits. The column source is the whole of it as JSON.

-- name: add_source
INSERT OR IGNORE INTO sources (url, kind, state, due_at, source)
VALUES (:url, :kind, :state, :due_at, :source);

-- name: claim_sources
UPDATE sources SET claimed_until = :until, claimed_by = :by
WHERE url IN (
    SELECT url FROM sources INDEXED BY sources_by_due
    WHERE due_at <= :now AND claimed_until <= :now AND kind IN ('catalog', 'site', 'file', 'push')
    ORDER BY due_at LIMIT :limit)
RETURNING source;

-- name: release_sources
-- Claims of a process that was killed: no other one has the file open.
UPDATE sources SET claimed_until = 0 WHERE claimed_until > 0;

-- name: renew_source
UPDATE sources SET claimed_until = :until
WHERE url = :url AND claimed_by = :by AND claimed_until > 0;

-- name: end_visit
UPDATE sources SET kind = :kind, state = :state, due_at = :due_at, source = :source,
    claimed_until = CASE WHEN claimed_by = :by THEN 0 ELSE claimed_until END
WHERE url = :url;

-- name: source
SELECT source FROM sources WHERE url = :url;

-- name: sources
SELECT source FROM sources ORDER BY url LIMIT :limit;

-- name: sources_in_state
SELECT source FROM sources WHERE state = :state ORDER BY url LIMIT :limit;

-- name: remove_source
DELETE FROM sources WHERE url = :url;
