-- Removing old tasks, receipts and contexts, a piece at a time. A size is in bytes, plus 200 a
-- row. A query that goes along a log or a history reads all of each row. So results are fetched
-- row by row, and no more than are needed.

-- name: ended
-- Tasks that ended before a time, each with the size of its stored form, and the number and the
-- size of its first records.
SELECT key, agent, tenant, owner, state,
    (SELECT coalesce(sum(length(body) + 200), 0) FROM task_messages WHERE task = key)
    + (SELECT coalesce(sum(length(head) + length(parts) + 200), 0) FROM task_artifacts
        WHERE task = key),
    (SELECT json_array(count(*), coalesce(sum(size), 0)) FROM (
        SELECT length(payload) + 200 AS size FROM log WHERE task = key LIMIT :records))
FROM tasks
WHERE agent = :agent AND ended_at IS NOT NULL AND ended_at < :before
ORDER BY ended_at LIMIT :limit;

-- name: log_size
SELECT count(*), coalesce(sum(size), 0) FROM (
    SELECT length(payload) + 200 AS size FROM log WHERE task = :task LIMIT :records);

-- name: remove_tasks
DELETE FROM tasks WHERE key IN (SELECT value FROM json_each(?));

-- name: remove_messages
DELETE FROM task_messages WHERE task IN (SELECT value FROM json_each(?));

-- name: remove_artifacts
DELETE FROM task_artifacts WHERE task IN (SELECT value FROM json_each(?));

-- name: remove_pushes
DELETE FROM pushes WHERE task IN (SELECT value FROM json_each(?));

-- name: remove_attempts
DELETE FROM push_attempts WHERE task IN (SELECT value FROM json_each(?));

-- name: remove_waits_of
DELETE FROM event_waits WHERE task IN (SELECT value FROM json_each(?));

-- name: remove_logs
DELETE FROM log WHERE task IN (SELECT value FROM json_each(?));

-- name: log_slice
-- The position up to which a log has so many bytes; no row when it has fewer.
SELECT seq, sub FROM (
    SELECT seq, sub, sum(size) OVER (ORDER BY seq, sub ROWS UNBOUNDED PRECEDING) AS bytes
    FROM (
        SELECT seq, sub, length(payload) + 200 AS size FROM log
        WHERE task = :task ORDER BY seq, sub LIMIT :records))
WHERE bytes >= :bytes ORDER BY seq, sub LIMIT 1;

-- name: remove_slice
-- Remove the first records of the log of a task that is gone.
DELETE FROM log WHERE task = ? AND (seq, sub) <= (?, ?);

-- name: partial_log
-- The key of the removed task whose log is being removed slice by slice, or 0.
SELECT user_version FROM pragma_user_version;

-- name: mark_partial_log
PRAGMA user_version = {task};

-- name: old_receipts
-- True if there are receipts from before a time.
SELECT EXISTS (SELECT 1 FROM receipts WHERE agent = ? AND at < ?);

-- name: remove_receipts
-- Remove the oldest, up to about ``bytes`` bytes, one at least.
DELETE FROM receipts WHERE (agent, tenant, owner, message_id) IN (
    SELECT agent, tenant, owner, message_id FROM (
        SELECT agent, tenant, owner, message_id, sum(size) OVER (
            ORDER BY at, tenant, owner, message_id ROWS UNBOUNDED PRECEDING) - size AS bytes
        FROM (
            SELECT agent, tenant, owner, message_id, at, length(reply) + 200 AS size FROM receipts
            WHERE agent = :agent AND at < :before
            ORDER BY at, tenant, owner, message_id LIMIT :records))
    WHERE bytes < :bytes);

-- name: old_events
-- True if there are events from before a time that no task waits for.
SELECT EXISTS (
    SELECT 1 FROM events e WHERE agent = ? AND at < ? AND NOT EXISTS (
        SELECT 1 FROM event_waits w WHERE w.agent = e.agent AND w.name = e.name));

-- name: remove_events
-- Remove the oldest of these, up to about ``bytes`` bytes, one at least.
DELETE FROM events WHERE (agent, name) IN (
    SELECT agent, name FROM (
        SELECT agent, name, sum(size) OVER (
            ORDER BY at, name ROWS UNBOUNDED PRECEDING) - size AS bytes
        FROM (
            SELECT agent, name, at, length(value) + 200 AS size FROM events e
            WHERE agent = :agent AND at < :before AND NOT EXISTS (
                SELECT 1 FROM event_waits w WHERE w.agent = e.agent AND w.name = e.name)
            ORDER BY at, name LIMIT :records))
    WHERE bytes < :bytes);

-- name: idle_contexts
-- Contexts without tasks that were last used before a time, with their sizes.
SELECT c.key,
    coalesce((SELECT sum(length(message) + 200) FROM history WHERE context = c.key), 0)
    + coalesce((SELECT sum(length(value) + 200) FROM context_values WHERE context = c.key), 0)
FROM contexts c
WHERE c.agent = :agent AND c.touched_at < :before AND NOT EXISTS (
    SELECT 1 FROM tasks t
    WHERE t.agent = c.agent AND t.tenant = c.tenant AND t.owner = c.owner
        AND t.context_id = c.context_id)
ORDER BY c.touched_at LIMIT :limit;

-- name: remove_contexts
-- Remove contexts, if they are still idle.
DELETE FROM contexts
WHERE key IN (SELECT value FROM json_each(?)) AND touched_at < ? AND NOT EXISTS (
    SELECT 1 FROM tasks t
    WHERE t.agent = contexts.agent AND t.tenant = contexts.tenant AND t.owner = contexts.owner
        AND t.context_id = contexts.context_id);

-- name: remove_histories
-- Remove the histories of contexts that were removed.
DELETE FROM history WHERE context IN (
    SELECT value FROM json_each(?) WHERE value NOT IN (SELECT key FROM contexts WHERE key = value));

-- name: remove_values_of
-- Remove the values of contexts that were removed.
DELETE FROM context_values WHERE context IN (
    SELECT value FROM json_each(?) WHERE value NOT IN (SELECT key FROM contexts WHERE key = value));
