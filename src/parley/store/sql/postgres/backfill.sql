-- Migration 2: put tasks that were kept as snapshots into the stored form. Migration 8: give what
-- applications made owners of their own. {schema} is the schema of the store.

-- name: tasks_before
-- The snapshots of tasks, and the records after them that the fold needs: up to ``limit`` tasks
-- and about ``bytes`` bytes.
SELECT key, task_id, seq, body, artifacts, tail FROM (
    SELECT key, task_id, seq, body, artifacts, tail,
        sum(size) OVER (ORDER BY key) - size AS held
    FROM (
        SELECT t.key, t.task_id, t.seq, s.body, s.artifacts, (
            SELECT string_agg(
                convert_to(
                    l.seq || ' ' || l.sub || ' ' || l.turn || ' ' || l.kind || ' ' || l.at || ' ',
                    'UTF8') || l.payload, '\x0a'::bytea ORDER BY l.seq, l.sub)
            FROM {schema}.log l
            WHERE l.task = t.key AND (l.seq, l.sub) > (coalesce(s.seq, 0), coalesce(s.sub, 0))
                AND (l.sub = 0 OR l.kind = 'turn')) AS tail,
            coalesce(octet_length(s.body) + octet_length(s.artifacts), 0) + 1000 AS size
        FROM {schema}.tasks t LEFT JOIN {schema}.snapshots s ON s.task = t.key
        WHERE t.key > %(key)s ORDER BY t.key LIMIT %(limit)s) next) sized
WHERE held < %(bytes)s
ORDER BY key;

-- name: add_messages
INSERT INTO {schema}.task_messages (task, n, body) SELECT * FROM unnest(%s, %s, %s);

-- name: add_artifacts
INSERT INTO {schema}.task_artifacts (task, n, seq, head, parts)
SELECT * FROM unnest(%s, %s, %s, %s, %s);

-- name: set_stored
UPDATE {schema}.tasks t
SET messages = f.messages, has_status_message = f.said, folded = f.seq, version = t.version + 1
FROM unnest(%s, %s, %s, %s) AS f (key, messages, said, seq) WHERE t.key = f.key;

-- name: drop_snapshots
DROP TABLE {schema}.snapshots;

-- name: owned_tasks
-- Tasks of callers, with the records of their first turns.
SELECT t.key, t.owner, (
    SELECT l.payload FROM {schema}.log l
    WHERE l.task = t.key AND l.kind = 'turn' AND l.sub > 0 ORDER BY l.seq, l.sub LIMIT 1)
FROM {schema}.tasks t WHERE t.key > %(key)s AND t.owner <> '' ORDER BY t.key LIMIT %(limit)s;

-- name: own_task
UPDATE {schema}.tasks SET owner = owner || chr(31), version = version + 1 WHERE key = ANY(%s);

-- name: own_receipts
UPDATE {schema}.receipts SET owner = owner || chr(31) WHERE EXISTS (
    SELECT 1 FROM {schema}.tasks t WHERE t.task_id = receipts.task_id
        AND t.agent = receipts.agent AND t.tenant = receipts.tenant
        AND t.owner = receipts.owner || chr(31));

-- name: own_contexts
-- Those in which nobody else has a task.
UPDATE {schema}.contexts SET owner = owner || chr(31) WHERE EXISTS (
    SELECT 1 FROM {schema}.tasks t WHERE t.agent = contexts.agent AND t.tenant = contexts.tenant
        AND t.owner = contexts.owner || chr(31) AND t.context_id = contexts.context_id)
    AND NOT EXISTS (
    SELECT 1 FROM {schema}.tasks t WHERE t.agent = contexts.agent AND t.tenant = contexts.tenant
        AND t.owner = contexts.owner AND t.context_id = contexts.context_id);

-- name: forget_counts
DELETE FROM {schema}.task_counts;

-- name: count_again
INSERT INTO {schema}.task_counts (agent, tenant, owner, state, slot, n)
SELECT agent, tenant, owner, state, 0, count(*) FROM {schema}.tasks
GROUP BY agent, tenant, owner, state;

-- Migration 9: what small tables had before they were rows.

-- name: small_secrets
SELECT name, value FROM {schema}.secrets;

-- name: small_api_keys
SELECT id, digest, owner, label, scopes, created_at, expires_at, revoked_at FROM {schema}.api_keys;

-- name: small_usage
SELECT day, agent, tenant, caller, skill, requests, refusals, messages, tasks, output_bytes, run_ms
FROM {schema}.usage;

-- name: small_quotas
SELECT name, slot, taken, ends_at FROM {schema}.quota_slots ORDER BY name, slot;

-- name: add_rows
INSERT INTO {schema}.rows (name, key, value, expires_at)
SELECT * FROM unnest(%s::text[], %s::text[], %s::bytea[], %s::bigint[]);

-- name: drop_secrets
DROP TABLE {schema}.secrets;

-- name: drop_api_keys
DROP TABLE {schema}.api_keys;

-- name: drop_usage
DROP TABLE {schema}.usage;

-- name: drop_quotas
DROP TABLE {schema}.quota_slots;
