-- Import, and the schema's version.

-- name: contexts_there
SELECT c.agent, c.tenant, c.owner, c.context_id
FROM json_each(?) j JOIN contexts c ON
    c.agent = json_extract(j.value, '$[0]') AND c.tenant = json_extract(j.value, '$[1]')
    AND c.owner = json_extract(j.value, '$[2]') AND c.context_id = json_extract(j.value, '$[3]');

-- name: receipts_there
SELECT r.agent, r.tenant, r.owner, r.message_id
FROM json_each(?) j JOIN receipts r ON
    r.agent = json_extract(j.value, '$[0]') AND r.tenant = json_extract(j.value, '$[1]')
    AND r.owner = json_extract(j.value, '$[2]') AND r.message_id = json_extract(j.value, '$[3]');

-- name: tasks_there
SELECT task_id FROM tasks
WHERE task_id IN (SELECT json_extract(value, '$[0]') FROM json_each(?));

-- name: last_context
SELECT coalesce(max(key), 0) FROM contexts;

-- name: add_contexts
INSERT INTO contexts (key, agent, tenant, owner, context_id, said, touched_at)
VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: add_messages
INSERT INTO history (context, n, message) VALUES (?, ?, ?);

-- name: add_values
INSERT INTO context_values (context, name, value) VALUES (?, ?, ?);

-- name: add_receipts
INSERT INTO receipts (agent, tenant, owner, message_id, digest, task_id, turn, reply, at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: add_tasks
INSERT INTO tasks (
    key, task_id, agent, tenant, owner, context_id, state, status_at, seq, sub, turn, turn_open,
    waiting, cancel_requested, epoch, ended_at, place, wakes_at, base_url, holder)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: events_there
SELECT e.agent, e.name
FROM json_each(?) j JOIN events e ON
    e.agent = json_extract(j.value, '$[0]') AND e.name = json_extract(j.value, '$[1]');

-- name: add_events
INSERT INTO events (agent, name, at, value) VALUES (?, ?, ?, ?);

-- name: add_waits
-- A task that waits for an event, which may be complete here.
INSERT INTO event_waits (task, agent, name) VALUES (?, ?, ?);

-- name: wake_for_events
UPDATE tasks SET wakes_at = 0 WHERE key = ? AND EXISTS (
    SELECT 1 FROM event_waits w JOIN events e ON e.agent = w.agent AND e.name = w.name
    WHERE w.task = tasks.key);

-- name: count_tasks
INSERT INTO task_counts (agent, tenant, owner, state, n) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (agent, tenant, owner, state) DO UPDATE SET n = n + excluded.n;

-- name: add_records
INSERT INTO log (task, seq, sub, turn, kind, at, payload) VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: add_pushes
INSERT INTO pushes (
    task, id, agent, config, version, revision, cursor, state, note, options, confirmed, holder)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: add_task_messages
INSERT INTO task_messages (task, n, body) VALUES (?, ?, ?);

-- name: add_task_artifacts
INSERT INTO task_artifacts (task, n, seq, head, parts) VALUES (?, ?, ?, ?, ?);

-- name: set_stored
UPDATE tasks SET messages = ?, has_status_message = ?, folded = ? WHERE key = ?;
