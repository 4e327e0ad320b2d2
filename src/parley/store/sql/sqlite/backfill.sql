-- Migration 4: put tasks that were kept as snapshots into the stored form.

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
