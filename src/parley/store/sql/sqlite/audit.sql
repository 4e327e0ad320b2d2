-- The audit.

-- piece: audit_columns
seq, id, at, kind, issuer, actor, client, address, agent, tenant, subject, outcome, details,
previous, hash

-- name: audit_head
-- The number and the hash of the last line.
SELECT seq, hash FROM audit ORDER BY seq DESC LIMIT 1;

-- name: audit_ids
-- Those of some ids that are there.
SELECT id FROM audit WHERE id IN (SELECT value FROM json_each(?));

-- name: add_audit
INSERT INTO audit ({audit_columns})
VALUES (:seq, :id, :at, :kind, :issuer, :actor, :client, :address, :agent, :tenant, :subject,
    :outcome, :details, :previous, :hash);

-- name: audit_lines
-- Lines after one, in order.
SELECT {audit_columns} FROM audit
WHERE seq > :after AND at >= :since AND at < :until
    AND (:kind = '' OR kind = :kind OR substr(kind, 1, length(:kind) + 1) = :kind || '.')
    AND (:actor = '' OR actor = :actor) AND (:agent = '' OR agent = :agent)
    AND (:task = '' OR subject = :task)
ORDER BY seq LIMIT :limit;

-- name: newest_audit_lines
-- The last lines, the newest first.
SELECT {audit_columns} FROM audit
WHERE seq > :after AND at >= :since AND at < :until
    AND (:kind = '' OR kind = :kind OR substr(kind, 1, length(:kind) + 1) = :kind || '.')
    AND (:actor = '' OR actor = :actor) AND (:agent = '' OR agent = :agent)
    AND (:task = '' OR subject = :task)
ORDER BY seq DESC LIMIT :limit;

-- name: audit_prunable
-- The last line before the first that is not old, of so many at most, with the number of those up
-- to it.
SELECT {audit_columns}, (SELECT count(*) FROM audit b WHERE b.seq <= a.seq) FROM audit a
WHERE seq < coalesce((SELECT min(seq) FROM audit WHERE at >= :before), 9223372036854775807)
    AND seq < (SELECT min(seq) FROM audit) + :most
ORDER BY seq DESC LIMIT 1;

-- name: allow_audit_prune
UPDATE audit_pruned SET below = ?;

-- name: prune_audit
DELETE FROM audit WHERE seq < ?;
