-- Who did what, as of one moment. {schema} is the prefix of a table's name, {?} a parameter, ({facts})
-- whether a record is a decision of a policy.

-- piece: audit_columns
seq, id, at, kind, issuer, actor, client, address, agent, tenant, subject, outcome, details,
previous, hash

-- piece: audit_selected
WHERE seq > {?} AND at >= {?} AND at < {?}
    AND ({?} = '' OR kind = {?} OR substr(kind, 1, CAST({?} AS integer)) = {?})
    AND ({?} = '' OR actor = {?}) AND ({?} = '' OR agent = {?}) AND ({?} = '' OR subject = {?})

-- name: audit_lines
-- Lines after one, in order.
SELECT {audit_columns} FROM {schema}audit {audit_selected} ORDER BY seq LIMIT {?};

-- name: newest_audit_lines
-- The last lines, the newest first.
SELECT {audit_columns} FROM {schema}audit {audit_selected} ORDER BY seq DESC LIMIT {?};

-- name: audit_lines_by_id
-- The lines of some ids.
SELECT {audit_columns} FROM {schema}audit WHERE id IN ({ids});

-- name: add_audit
INSERT INTO {schema}audit ({audit_columns})
VALUES ({?}, {?}, {?}, {?}, {?}, {?}, {?}, {?}, {?}, {?}, {?}, {?}, {?}, {?}, {?});

-- name: audit_prunable
-- The last line before the first that is not old, of so many at most, with the number of those up
-- to it.
SELECT {audit_columns}, (SELECT count(*) FROM {schema}audit b WHERE b.seq <= a.seq)
FROM {schema}audit a
WHERE seq < coalesce((SELECT min(seq) FROM {schema}audit WHERE at >= {?}), 9223372036854775807)
    AND seq < (SELECT min(seq) FROM {schema}audit) + {?}
ORDER BY seq DESC LIMIT 1;

-- name: allow_audit_prune
UPDATE {schema}audit_pruned SET below = {?};

-- name: prune_audit
DELETE FROM {schema}audit WHERE seq < {?};

-- name: audit_by_time
-- Lines of the audit after a number and within a time, the oldest first.
SELECT {audit_columns}
FROM {schema}audit WHERE seq > {?} AND at >= {?} AND at < {?} ORDER BY at, seq;

-- name: audit_last
-- The last line of the audit.
SELECT {audit_columns}
FROM {schema}audit ORDER BY seq DESC LIMIT 1;

-- name: audit_chain
-- All lines of the audit, in the order of their numbers.
SELECT {audit_columns}
FROM {schema}audit ORDER BY seq;

-- name: audit_log
-- The log of one task, in order.
SELECT task, seq, sub, turn, kind, at, payload FROM {schema}log WHERE task = {?} ORDER BY seq, sub;

-- name: audit_facts
-- Records of tasks within a time, the oldest first, each first one with the record of the request.
-- Nothing follows the end of a task, so those that ended before are passed over.
SELECT t.task_id, t.agent, t.tenant, t.owner, l.seq, l.sub, l.turn, l.kind, l.at, l.payload,
    f.payload
FROM {schema}tasks t JOIN {schema}log l ON l.task = t.key
LEFT JOIN {schema}log f
    ON l.kind = 'task' AND f.task = l.task AND f.seq = l.seq AND f.sub = 1 AND f.kind = 'turn'
WHERE (t.ended_at IS NULL OR t.ended_at >= {?}) AND l.at >= {?} AND l.at < {?}
    AND ({?} = '' OR t.agent = {?}) AND ({?} = '' OR t.task_id = {?})
    AND (l.kind IN ('task', 'received', 'turn', 'cancel', 'status')
        OR (l.kind = 'remembered' AND ({facts})))
ORDER BY l.at, t.key, l.seq, l.sub;
