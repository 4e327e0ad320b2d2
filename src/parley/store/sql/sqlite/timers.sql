-- Sleeping tasks and events.

-- piece: due
-- An agent's sleeping tasks that are due.
FROM tasks t INDEXED BY tasks_asleep
WHERE t.agent = ? AND t.wakes_at IS NOT NULL AND t.wakes_at <= ?
ORDER BY t.wakes_at

-- name: next_wake
-- The first time at which a task of these agents is due.
SELECT min((
    SELECT min(t.wakes_at) FROM tasks t INDEXED BY tasks_asleep
    WHERE t.agent = j.value AND t.wakes_at IS NOT NULL))
FROM json_each(?) j;

-- name: due_tasks
SELECT t.task_id, t.agent, t.tenant, t.owner {due} LIMIT ?;

-- name: event
SELECT value FROM events WHERE agent = ? AND name = ?;

-- name: complete_event
INSERT INTO events (agent, name, at, value) VALUES (?, ?, ?, ?);

-- name: waiting_for_event
-- The heads of the tasks that wait for an event.
SELECT {heads_as_json}
FROM tasks WHERE wakes_at IS NOT NULL
    AND key IN (SELECT task FROM event_waits WHERE agent = ? AND name = ?);

-- name: remove_waits
DELETE FROM event_waits WHERE task = ?;

-- name: add_wait
INSERT OR IGNORE INTO event_waits (agent, name, task) VALUES (?, ?, ?);
