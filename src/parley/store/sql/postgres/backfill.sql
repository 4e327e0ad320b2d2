-- Migration 2: put tasks that were kept as snapshots into the stored form. {schema} is the schema
-- of the store.

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
