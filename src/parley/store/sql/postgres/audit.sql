-- The audit. {schema} is the schema of the store.

-- piece: audit_columns
seq, id, at, kind, issuer, actor, client, address, agent, tenant, subject, outcome, details,
previous, hash

-- name: lock_audit
-- Until the transaction ends nobody else appends, so that there is one chain.
SELECT pg_advisory_xact_lock(hashtextextended('parley audit {schema}', 0));

-- name: audit_head
-- The number and the hash of the last line.
SELECT seq, hash FROM {schema}.audit ORDER BY seq DESC LIMIT 1;

-- name: audit_lines_by_id
-- Those of some ids that are there.
SELECT {audit_columns} FROM {schema}.audit WHERE id = ANY(%s) ORDER BY seq;

-- name: add_audit
INSERT INTO {schema}.audit ({audit_columns})
VALUES (%(seq)s, %(id)s, %(at)s, %(kind)s, %(issuer)s, %(actor)s, %(client)s, %(address)s,
    %(agent)s, %(tenant)s, %(subject)s, %(outcome)s, %(details)s, %(previous)s, %(hash)s);

-- name: audit_lines
-- Lines after one, in order.
SELECT {audit_columns} FROM {schema}.audit
WHERE seq > %(after)s AND at >= %(since)s AND at < %(until)s
    AND (%(kind)s = '' OR kind = %(kind)s OR starts_with(kind, %(kind)s || '.'))
    AND (%(actor)s = '' OR actor = %(actor)s) AND (%(agent)s = '' OR agent = %(agent)s)
    AND (%(task)s = '' OR subject = %(task)s)
ORDER BY seq LIMIT %(limit)s;

-- name: newest_audit_lines
-- The last lines, the newest first.
SELECT {audit_columns} FROM {schema}.audit
WHERE seq > %(after)s AND at >= %(since)s AND at < %(until)s
    AND (%(kind)s = '' OR kind = %(kind)s OR starts_with(kind, %(kind)s || '.'))
    AND (%(actor)s = '' OR actor = %(actor)s) AND (%(agent)s = '' OR agent = %(agent)s)
    AND (%(task)s = '' OR subject = %(task)s)
ORDER BY seq DESC LIMIT %(limit)s;

-- name: audit_prunable
-- The last line before the first that is not old, of so many at most, with the number of those up
-- to it.
SELECT {audit_columns}, (SELECT count(*) FROM {schema}.audit b WHERE b.seq <= a.seq)
FROM {schema}.audit a
WHERE seq < coalesce(
        (SELECT min(seq) FROM {schema}.audit WHERE at >= %(before)s), 9223372036854775807)
    AND seq < (SELECT min(seq) FROM {schema}.audit) + %(most)s
ORDER BY seq DESC LIMIT 1;

-- name: allow_audit_prune
UPDATE {schema}.audit_pruned SET below = %s;

-- name: prune_audit
DELETE FROM {schema}.audit WHERE seq < %s;
