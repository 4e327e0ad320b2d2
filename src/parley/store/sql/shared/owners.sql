-- Assigns an issuer to rows whose owner is a plain id: tasks, contexts, receipts and counts. {schema}
-- is the prefix of a table's name, {plain} the condition of such a row, {prefix} goes before its owner,
-- {version} is what else changes of a head, {slot} a column of PostgreSQL's counts.

-- piece: plain
owner <> '' AND {find}(owner, {chr}(31)) IN (0, length(owner))
    AND {agent} IN ('', agent) AND {tenant} IN ('', tenant);

-- name: plain_tasks
SELECT count(*) FROM {schema}tasks WHERE {plain};

-- name: plain_contexts
SELECT count(*) FROM {schema}contexts WHERE {plain};

-- name: plain_receipts
SELECT count(*) FROM {schema}receipts WHERE {plain};

-- name: assign_tasks
UPDATE {schema}tasks SET owner = {prefix} || owner{version} WHERE {plain};

-- name: assign_counts
INSERT INTO {schema}task_counts (agent, tenant, owner, state, {slot}n)
SELECT agent, tenant, {prefix} || owner, state, {slot}n FROM {schema}task_counts WHERE {plain}
ON CONFLICT (agent, tenant, owner, {slot}state) DO UPDATE SET n = task_counts.n + excluded.n;

-- name: remove_counts
DELETE FROM {schema}task_counts WHERE {plain};

-- name: remove_receipts
-- Those of messages that their owner sent again under the issuer: what was answered last counts.
DELETE FROM {schema}receipts AS r
WHERE {plain} AND EXISTS (
    SELECT 1 FROM {schema}receipts AS o
    WHERE o.agent = r.agent AND o.tenant = r.tenant AND o.owner = {prefix} || r.owner
        AND o.message_id = r.message_id);

-- name: assign_receipts
UPDATE {schema}receipts SET owner = {prefix} || owner WHERE {plain};

-- name: twin_contexts
-- Contexts that their owner has under the issuer too: both keys, when they were used last, and by
-- how much the numbers of the messages of the first go down so that they precede the others.
SELECT o.key, t.key, o.touched_at, t.touched_at,
    coalesce((SELECT max(h.n) FROM {schema}history h WHERE h.context = o.key), 0) + 1
    - coalesce((SELECT min(h.n) FROM {schema}history h WHERE h.context = t.key), t.said + 1)
FROM (
    SELECT key, agent, tenant, {prefix} || owner AS owner, context_id, touched_at
    FROM {schema}contexts WHERE {plain}) o
JOIN {schema}contexts t ON t.agent = o.agent AND t.tenant = o.tenant AND t.owner = o.owner
    AND t.context_id = o.context_id;

-- name: join_history
UPDATE {schema}history SET context = {to}, n = n - {shift} WHERE context = {key};

-- name: trim_history
DELETE FROM {schema}history
WHERE context = {to} AND n <= (SELECT said FROM {schema}contexts WHERE key = {to}) - {kept};

-- name: join_values
-- What was stored later under the same name wins.
INSERT INTO {schema}context_values (context, name, value)
SELECT {to}, v.name, v.value FROM {schema}context_values v
WHERE v.context = {key} AND NOT EXISTS (
    SELECT 1 FROM {schema}context_values w WHERE w.context = {to} AND w.name = v.name);

-- name: remove_values
DELETE FROM {schema}context_values WHERE context = {key};

-- name: touch_context
UPDATE {schema}contexts SET touched_at = {at} WHERE key = {to};

-- name: remove_context
DELETE FROM {schema}contexts WHERE key = {key};

-- name: assign_contexts
UPDATE {schema}contexts SET owner = {prefix} || owner WHERE {plain};
