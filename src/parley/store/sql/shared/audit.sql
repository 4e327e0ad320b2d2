-- Who did what, as of one moment. {schema} is the prefix of a table's name, {?} a parameter, ({facts})
-- whether a record is a decision of a policy.

-- name: audit_by_time
-- Lines of the audit after a number and within a time, the oldest first.
SELECT seq, id, at, kind, issuer, actor, client, address, agent, tenant, subject, outcome, details,
    previous, hash
FROM {schema}audit WHERE seq > {?} AND at >= {?} AND at < {?} ORDER BY at, seq;

-- name: audit_last
-- The last line of the audit.
SELECT seq, id, at, kind, issuer, actor, client, address, agent, tenant, subject, outcome, details,
    previous, hash
FROM {schema}audit ORDER BY seq DESC LIMIT 1;

-- name: audit_chain
-- All lines of the audit, in the order of their numbers.
SELECT seq, id, at, kind, issuer, actor, client, address, agent, tenant, subject, outcome, details,
    previous, hash
FROM {schema}audit ORDER BY seq;

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
