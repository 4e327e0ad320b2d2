-- Migration 4: put tasks that were kept as snapshots into the stored form. Migration 10: give what
-- applications made owners of their own.

-- name: tasks_before
SELECT key, task_id, seq FROM tasks WHERE key > ? ORDER BY key LIMIT ?;

-- name: task_before
-- A task's snapshot, and the records after it that the fold needs.
SELECT s.body, s.artifacts, (
    SELECT CAST(group_concat(line, char(10)) AS BLOB) FROM (
        SELECT l.seq || ' ' || l.sub || ' ' || l.turn || ' ' || l.kind || ' ' || l.at || ' '
            || l.payload AS line
        FROM log l
        WHERE l.task = t.key AND (l.seq, l.sub) > (coalesce(s.seq, 0), coalesce(s.sub, 0))
            AND (l.sub = 0 OR l.kind = 'turn')
        ORDER BY l.seq, l.sub))
FROM tasks t LEFT JOIN snapshots s ON s.task = t.key
WHERE t.key = ?;

-- name: add_message
INSERT INTO task_messages (task, n, body) VALUES (?, ?, ?);

-- name: add_artifact
INSERT INTO task_artifacts (task, n, seq, head, parts) VALUES (?, ?, ?, ?, ?);

-- name: set_stored
UPDATE tasks SET messages = ?, has_status_message = ?, folded = ? WHERE key = ?;

-- name: drop_snapshots
DROP TABLE snapshots;

-- name: owned_tasks
-- Tasks of callers, with the records of their first turns.
SELECT t.key, t.owner, (
    SELECT l.payload FROM log l
    WHERE l.task = t.key AND l.kind = 'turn' AND l.sub > 0 ORDER BY l.seq, l.sub LIMIT 1)
FROM tasks t WHERE t.key > ? AND t.owner <> '' ORDER BY t.key LIMIT ?;

-- name: own_task
UPDATE tasks SET owner = owner || char(31) WHERE key = ?;

-- name: own_receipts
UPDATE receipts SET owner = owner || char(31) WHERE EXISTS (
    SELECT 1 FROM tasks t WHERE t.task_id = receipts.task_id
        AND t.agent = receipts.agent AND t.tenant = receipts.tenant
        AND t.owner = receipts.owner || char(31));

-- name: own_contexts
-- Those in which nobody else has a task.
UPDATE contexts SET owner = owner || char(31) WHERE EXISTS (
    SELECT 1 FROM tasks t WHERE t.agent = contexts.agent AND t.tenant = contexts.tenant
        AND t.owner = contexts.owner || char(31) AND t.context_id = contexts.context_id)
    AND NOT EXISTS (
    SELECT 1 FROM tasks t WHERE t.agent = contexts.agent AND t.tenant = contexts.tenant
        AND t.owner = contexts.owner AND t.context_id = contexts.context_id);

-- name: forget_counts
DELETE FROM task_counts;

-- name: count_again
INSERT INTO task_counts (agent, tenant, owner, state, n)
SELECT agent, tenant, owner, state, count(*) FROM tasks
GROUP BY agent, tenant, owner, state;

-- Migration 11: what small tables had before they were rows.

-- name: small_secrets
SELECT name, value FROM secrets;

-- name: small_api_keys
SELECT id, digest, owner, label, scopes, created_at, expires_at, revoked_at FROM api_keys;

-- name: small_usage
SELECT day, agent, tenant, caller, skill, requests, refusals, messages, tasks, output_bytes, run_ms
FROM usage;

-- name: small_quotas
SELECT name, slot, taken, ends_at FROM quota_slots ORDER BY name, slot;

-- name: add_row
INSERT INTO rows (name, key, value, expires_at) VALUES (?, ?, ?, ?);

-- name: drop_secrets
DROP TABLE secrets;

-- name: drop_api_keys
DROP TABLE api_keys;

-- name: drop_usage
DROP TABLE usage;

-- name: drop_quotas
DROP TABLE quota_slots;
