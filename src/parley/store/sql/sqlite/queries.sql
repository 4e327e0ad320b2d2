-- Every step of a statement makes its thread give up the interpreter and wait to get it back
-- (see store/sql_engine/gil_yield.py). So what is written in bulk is written as many rows of one VALUES, and what is
-- read in bulk comes back as one value: records joined by newlines, their fields by spaces, tasks
-- by the control characters 30 and 31. None of these occurs in compact JSON.


-- name: heads
-- The heads of several tasks, given as a JSON array of ids.
SELECT json_group_array(json_array(
    key, task_id, agent, tenant, owner, context_id, state, status_at, seq, sub, turn, turn_open,
    waiting, cancel_requested, epoch, ended_at, holder, place, messages, has_status_message,
    folded))
FROM tasks WHERE task_id IN (SELECT value FROM json_each(?));

-- name: add_heads
INSERT INTO tasks (
    key, task_id, agent, tenant, owner, context_id, state, status_at, seq, sub, turn, turn_open,
    waiting, cancel_requested, epoch, ended_at, holder, place, messages, has_status_message, folded)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- The heads of tasks that went on. An update rewrites the entry in every index that has one of its
-- columns, changed or not; hence four of them, for what changed of the head.

-- name: move_heads
-- The log grew, and no more.
WITH moved (key, seq, sub, turn, epoch, messages, has_status_message, folded) AS (
    VALUES (?, ?, ?, ?, ?, ?, ?, ?))
UPDATE tasks SET
    seq = moved.seq, sub = moved.sub, turn = moved.turn, epoch = moved.epoch,
    messages = moved.messages, has_status_message = moved.has_status_message,
    folded = moved.folded
FROM moved WHERE tasks.key = moved.key;

-- name: change_heads
-- The status changed too.
WITH moved (
    key, seq, sub, turn, epoch, messages, has_status_message, folded, state, status_at) AS (
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?))
UPDATE tasks SET
    seq = moved.seq, sub = moved.sub, turn = moved.turn, epoch = moved.epoch,
    messages = moved.messages, has_status_message = moved.has_status_message,
    folded = moved.folded,
    state = moved.state, status_at = moved.status_at
FROM moved WHERE tasks.key = moved.key;

-- name: turn_heads
-- Who holds the task changed, or what is left to do.
WITH moved (
    key, seq, sub, turn, epoch, messages, has_status_message, folded, turn_open, waiting,
    cancel_requested, holder, place) AS (
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?))
UPDATE tasks SET
    seq = moved.seq, sub = moved.sub, turn = moved.turn, epoch = moved.epoch,
    messages = moved.messages, has_status_message = moved.has_status_message,
    folded = moved.folded,
    turn_open = moved.turn_open, waiting = moved.waiting,
    cancel_requested = moved.cancel_requested, holder = moved.holder, place = moved.place
FROM moved WHERE tasks.key = moved.key;

-- name: rewrite_heads
-- Both, or the task ended.
WITH moved (
    key, seq, sub, turn, epoch, messages, has_status_message, folded, turn_open, waiting,
    cancel_requested, holder, place, state, status_at, ended_at) AS (
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?))
UPDATE tasks SET
    seq = moved.seq, sub = moved.sub, turn = moved.turn, epoch = moved.epoch,
    messages = moved.messages, has_status_message = moved.has_status_message,
    folded = moved.folded,
    turn_open = moved.turn_open, waiting = moved.waiting,
    cancel_requested = moved.cancel_requested, holder = moved.holder, place = moved.place,
    state = moved.state, status_at = moved.status_at, ended_at = moved.ended_at
FROM moved WHERE tasks.key = moved.key;

-- name: count_tasks
-- So many tasks more, or fewer, are in a state.
INSERT INTO task_counts (agent, tenant, owner, state, n)
VALUES (?, ?, ?, ?, ?)
ON CONFLICT (agent, tenant, owner, state) DO UPDATE SET n = n + excluded.n;

-- name: add_records
INSERT INTO log (task, seq, sub, turn, kind, at, payload)
VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: add_messages
-- Messages of tasks, in the order in which they were said; 0 is a task's metadata.
INSERT INTO task_messages (task, n, body)
VALUES (?, ?, ?);

-- name: replace_artifact
DELETE FROM task_artifacts WHERE task = ? AND n = ?;

-- name: add_artifacts
INSERT INTO task_artifacts (task, n, seq, head, parts)
VALUES (?, ?, ?, ?, ?);

-- name: add_receipts
INSERT INTO receipts (agent, tenant, owner, message_id, digest, task_id, turn, reply, at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: last_key
-- The last key that is in use: a log of which a part was removed has one too (see remove_slice).
SELECT max(coalesce((SELECT max(key) FROM tasks), 0), user_version) FROM pragma_user_version;

-- What is asked for of the stored form of a task t, for ``load`` and ``list``.

-- piece: status_message
(SELECT m.body FROM task_messages m
WHERE m.task = t.key AND t.has_status_message AND m.n = t.messages)

-- piece: metadata
(SELECT m.body FROM task_messages m WHERE m.task = t.key AND m.n = 0)

-- piece: task_history
(SELECT CAST(group_concat(body, ',') AS BLOB) FROM (
    SELECT m.body FROM task_messages m
    WHERE m.task = t.key AND m.n > max(0, t.messages - t.has_status_message - :history)
        AND m.n <= t.messages - t.has_status_message
    ORDER BY m.n))

-- piece: artifacts
(SELECT CAST(group_concat(line, char(30)) AS BLOB) FROM (
    SELECT a.n || char(31) || a.head || char(31) || a.parts AS line FROM task_artifacts a
    WHERE :artifacts AND a.task = t.key ORDER BY a.n, a.seq))

-- piece: tail
(SELECT CAST(group_concat(line, char(10)) AS BLOB) FROM (
    SELECT l.seq || ' 0 ' || l.turn || ' ' || l.kind || ' ' || l.at || ' ' || l.payload AS line
    FROM log l
    WHERE :artifacts AND l.task = t.key AND l.seq > t.folded AND l.sub = 0 AND l.kind = 'artifact'
    ORDER BY l.seq))

-- piece: size
-- How many bytes that has, without reading them.
(SELECT coalesce(sum(length(m.body)), 0) FROM task_messages m
WHERE m.task = t.key AND m.n > max(0, t.messages - t.has_status_message - :history))
+ (SELECT coalesce(sum(length(a.head) + length(a.parts)), 0) FROM task_artifacts a
WHERE :artifacts AND a.task = t.key)
+ (SELECT coalesce(sum(length(l.payload)), 0) FROM log l
WHERE :artifacts AND l.task = t.key AND l.seq > t.folded AND l.sub = 0 AND l.kind = 'artifact')

-- name: load
-- A task's head and its stored form; nothing of a task of another scope.
SELECT
    t.agent, t.tenant, t.owner, t.seq, t.turn, t.turn_open, t.waiting, t.epoch, t.cancel_requested,
    t.holder, t.context_id, t.state, t.status_at, {status_message}, {metadata}, {task_history},
    {artifacts}, {tail}
FROM tasks t
WHERE t.task_id = :task_id AND (:any_scope
    OR t.agent = :agent AND t.tenant = :tenant AND t.owner = :owner);

-- name: events
-- Public events after a number, until so many or so many bytes.
SELECT CAST(group_concat(line, char(10)) AS BLOB) FROM (
    SELECT seq || ' 0 ' || turn || ' ' || kind || ' ' || at || ' ' || payload AS line
    FROM log
    WHERE task = (SELECT key FROM tasks WHERE task_id = :task_id) AND sub = 0
        AND seq > :after AND seq <= (
            SELECT max(seq) FROM (
                SELECT seq, sum(size) OVER (ORDER BY seq) - size AS held FROM (
                    SELECT seq, length(payload) AS size FROM log
                    WHERE task = (SELECT key FROM tasks WHERE task_id = :task_id) AND sub = 0
                        AND seq > :after
                    ORDER BY seq LIMIT :limit))
            WHERE held < :bytes)
    ORDER BY seq);

-- name: private_records
-- Private records of some kinds behind a place.
SELECT CAST(group_concat(line, char(10)) AS BLOB) FROM (
    SELECT seq || ' ' || sub || ' ' || turn || ' ' || kind || ' ' || at || ' ' || payload AS line
    FROM log INDEXED BY log_of_kind
    WHERE task = (SELECT key FROM tasks WHERE task_id = :task_id) AND sub > 0
        AND kind IN (SELECT value FROM json_each(:kinds))
        AND seq >= :seq AND (seq, sub) > (:seq, :sub)
    ORDER BY seq, sub LIMIT :limit);

-- name: waiting_messages
-- The last messages that came, as many as no turn has taken: the oldest of these.
SELECT CAST(group_concat(line, char(10)) AS BLOB) FROM (
    SELECT l.seq || ' ' || l.sub || ' ' || l.turn || ' received ' || l.at || ' ' || l.payload
        AS line
    FROM (
        SELECT task, seq, sub FROM log INDEXED BY log_of_kind
        WHERE task = (SELECT key FROM tasks WHERE task_id = :task_id) AND sub > 0
            AND kind = 'received'
        ORDER BY seq DESC, sub DESC
        LIMIT (SELECT waiting FROM tasks WHERE task_id = :task_id)) w
    JOIN log l ON l.task = w.task AND l.seq = w.seq AND l.sub = w.sub
    ORDER BY l.seq, l.sub LIMIT :limit OFFSET :skip);

-- name: found
-- The tasks of a page and one more, the last updated first, each with its size.
SELECT group_concat(f.key || ' ' || ({size}), char(10))
FROM (
    {found}
    ORDER BY status_at DESC, task_id DESC LIMIT :limit + 1) f
JOIN tasks t ON t.key = f.key;

-- name: list
-- The tasks with these keys, in their order.
SELECT CAST(group_concat(
    json_quote(task_id) || char(29) || json_quote(context_id) || char(29) || state || char(29)
    || status_at || char(29) || coalesce(status_message, '') || char(29) || coalesce(metadata, '')
    || char(29) || coalesce(history, '') || char(29) || coalesce(artifacts, '') || char(29)
    || coalesce(tail, ''), char(28)) AS BLOB)
FROM (
    SELECT
        t.task_id, t.context_id, t.state, t.status_at, {status_message} AS status_message,
        {metadata} AS metadata, {task_history} AS history, {artifacts} AS artifacts, {tail} AS tail
    FROM json_each(:keys) j CROSS JOIN tasks t ON t.key = j.value);

-- name: found_in_state
-- The first tasks of a list of those in one state.
SELECT * FROM (
    SELECT key, status_at, task_id FROM tasks
    WHERE agent = :agent AND tenant = :tenant AND owner = :owner AND state = {state}
        AND status_at BETWEEN :first AND min(:last, :before_at)
        AND (status_at, task_id) < (:before_at, :before_id)
    ORDER BY status_at DESC, task_id DESC
    LIMIT :limit + 1)

-- name: found_in_context
SELECT key, status_at, task_id FROM tasks INDEXED BY tasks_in_context
WHERE agent = :agent AND tenant = :tenant AND owner = :owner AND context_id = :context_id
    AND status_at BETWEEN :first AND min(:last, :before_at)
    AND (:state = '' OR state = :state)
    AND (status_at, task_id) < (:before_at, :before_id)

-- name: total
-- How many tasks of a scope there are, by state.
SELECT coalesce(sum(n), 0) FROM task_counts
WHERE agent = :agent AND tenant = :tenant AND owner = :owner AND (:state = '' OR state = :state);

-- name: count_between
-- How many tasks in one state have a status of a span of time.
SELECT count(*) FROM tasks
WHERE agent = :agent AND tenant = :tenant AND owner = :owner AND state = :state
    AND status_at BETWEEN :first AND :last;

-- name: count_in_context
SELECT count(*) FROM tasks INDEXED BY tasks_in_context
WHERE agent = :agent AND tenant = :tenant AND owner = :owner AND context_id = :context_id
    AND status_at BETWEEN :first AND :last
    AND (:state = '' OR state = :state);

-- name: adoptable
-- The heads of an agent's tasks that nobody holds and that have work left, as of ``heads``.
SELECT json_group_array(json_array(
    key, task_id, agent, tenant, owner, context_id, state, status_at, seq, sub, turn, turn_open,
    waiting, cancel_requested, epoch, ended_at, holder, place, messages, has_status_message,
    folded))
FROM (
    SELECT * FROM tasks INDEXED BY tasks_under_way
    WHERE ended_at IS NULL AND (holder <> '' OR turn_open OR waiting OR cancel_requested)
        AND holder = '' AND agent = ?
    ORDER BY place, key LIMIT ?);

-- name: unclaimed
-- How many tasks there are to adopt, by agent, up to a number each.
WITH RECURSIVE agents (agent) AS (
    SELECT min(agent) FROM tasks INDEXED BY tasks_under_way
    WHERE ended_at IS NULL AND (holder <> '' OR turn_open OR waiting OR cancel_requested)
        AND holder = ''
    UNION ALL
    SELECT (
        SELECT min(t.agent) FROM tasks t INDEXED BY tasks_under_way
        WHERE t.ended_at IS NULL
            AND (t.holder <> '' OR t.turn_open OR t.waiting OR t.cancel_requested)
            AND t.holder = '' AND t.agent > agents.agent)
    FROM agents WHERE agents.agent IS NOT NULL)
SELECT agents.agent, (
    SELECT count(*) FROM (
        SELECT 1 FROM tasks t INDEXED BY tasks_under_way
        WHERE t.ended_at IS NULL
            AND (t.holder <> '' OR t.turn_open OR t.waiting OR t.cancel_requested)
            AND t.holder = '' AND t.agent = agents.agent
        LIMIT ?))
FROM agents WHERE agents.agent IS NOT NULL;

-- name: first_queued
SELECT place FROM tasks INDEXED BY tasks_under_way
WHERE ended_at IS NULL AND (holder <> '' OR turn_open OR waiting OR cancel_requested)
    AND holder = '' AND agent = ? AND place > 0
ORDER BY place LIMIT 1;

-- name: holding
SELECT task_id FROM tasks INDEXED BY tasks_under_way
WHERE ended_at IS NULL AND (holder <> '' OR turn_open OR waiting OR cancel_requested)
    AND holder = ? AND (turn_open OR waiting OR cancel_requested)
ORDER BY key;

-- name: holds
-- How many tasks a replica holds.
SELECT count(*) FROM tasks INDEXED BY tasks_under_way
WHERE ended_at IS NULL AND (holder <> '' OR turn_open OR waiting OR cancel_requested)
    AND holder = ?;

-- name: scope_of
SELECT agent, tenant, owner FROM tasks WHERE task_id = ?;

-- name: places
-- Where the logs of several tasks stand, given as a JSON array of ids.
SELECT json_group_array(json_array(
    task_id, seq, sub, epoch, holder, waiting, cancel_requested, ended_at IS NOT NULL))
FROM tasks WHERE task_id IN (SELECT value FROM json_each(?));

-- name: free_tasks
-- Nobody holds what was held: its holder is dead, and its writer fenced.
UPDATE tasks INDEXED BY tasks_under_way SET epoch = epoch + 1, holder = '', place = 0
WHERE ended_at IS NULL AND (holder <> '' OR turn_open OR waiting OR cancel_requested)
    AND holder > '';

-- name: free_pushes
UPDATE pushes INDEXED BY pushes_held SET holder = ''
WHERE state = 'active' AND holder <> '' AND holder > '';

-- name: parked
SELECT task_id FROM tasks INDEXED BY tasks_parked
WHERE agent = ? AND ended_at IS NULL AND NOT (turn_open OR waiting OR cancel_requested)
    AND status_at < ?
ORDER BY status_at LIMIT ?;

-- name: receipt
SELECT message_id, digest, task_id, turn, reply FROM receipts
WHERE agent = ? AND tenant = ? AND owner = ? AND message_id = ?;

-- name: history
SELECT CAST(group_concat(message, char(10)) AS BLOB) FROM (
    SELECT message FROM (
        SELECT h.n, h.message FROM contexts c JOIN history h ON h.context = c.key
        WHERE c.agent = ? AND c.tenant = ? AND c.owner = ? AND c.context_id = ?
        ORDER BY h.n DESC LIMIT ?)
    ORDER BY n);

-- name: value
SELECT v.value FROM contexts c JOIN context_values v ON v.context = c.key
WHERE c.agent = ? AND c.tenant = ? AND c.owner = ? AND c.context_id = ? AND v.name = ?;

-- name: touch_context
-- Something was kept for a context, and so many messages were said in it.
INSERT INTO contexts (agent, tenant, owner, context_id, said, touched_at)
VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (agent, tenant, owner, context_id) DO UPDATE SET
    said = said + excluded.said, touched_at = excluded.touched_at;

-- name: add_history
-- One message, so many before the last that was said.
INSERT INTO history (context, n, message)
SELECT key, said - ?5, ?6 FROM contexts
WHERE agent = ?1 AND tenant = ?2 AND owner = ?3 AND context_id = ?4;

-- name: trim_history
-- Forget all but the last so many messages.
DELETE FROM history WHERE (context, n) IN (
    SELECT h.context, h.n FROM contexts c JOIN history h ON h.context = c.key
    WHERE c.agent = ?1 AND c.tenant = ?2 AND c.owner = ?3 AND c.context_id = ?4
        AND h.n <= c.said - ?5);

-- name: put_value
INSERT INTO context_values (context, name, value)
SELECT key, ?5, ?6 FROM contexts
WHERE agent = ?1 AND tenant = ?2 AND owner = ?3 AND context_id = ?4
ON CONFLICT (context, name) DO UPDATE SET value = excluded.value;

-- name: remove_value
DELETE FROM context_values WHERE name = ?5 AND context = (
    SELECT key FROM contexts
    WHERE agent = ?1 AND tenant = ?2 AND owner = ?3 AND context_id = ?4);

-- name: pushes
-- The push notification configurations of a task, by id.
SELECT p.config, p.version, p.revision, p.cursor, p.state, p.note, p.holder
FROM tasks t JOIN pushes p ON p.task = t.key WHERE t.task_id = ? ORDER BY p.id;

-- name: put_push
-- One that replaces another goes on where that stands by now.
INSERT INTO pushes (task, id, agent, revision, config, version, cursor, state, note, holder)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (task, id) DO UPDATE SET
    revision = excluded.revision, config = excluded.config, version = excluded.version,
    state = excluded.state, note = excluded.note, holder = excluded.holder;

-- name: move_push
UPDATE pushes SET cursor = ?, state = ?, note = ?, holder = ?
WHERE task = (SELECT key FROM tasks WHERE task_id = ?) AND id = ? AND revision = ?;

-- name: remove_push
DELETE FROM pushes WHERE task = (SELECT key FROM tasks WHERE task_id = ?) AND id = ?;

-- name: adoptable_pushes
-- An agent's tasks with webhooks to be told by nobody, and whether one of those is behind.
SELECT p.task, t.task_id, max(p.cursor < t.seq)
FROM pushes p INDEXED BY pushes_free JOIN tasks t ON t.key = p.task
WHERE p.state = 'active' AND p.holder = '' AND p.agent = ?
GROUP BY p.task ORDER BY p.task LIMIT ?;

-- name: undelivered
-- Whether nobody tells some webhook of these agents; then those that a replica tells, in order.
SELECT EXISTS (
    SELECT 1 FROM pushes p INDEXED BY pushes_free
    WHERE p.state = 'active' AND p.holder = ''
        AND p.agent IN (SELECT value FROM json_each(?))), '', ''
UNION ALL
SELECT task, task_id, revision FROM (
    SELECT p.task, t.task_id, p.revision
    FROM pushes p INDEXED BY pushes_held JOIN tasks t ON t.key = p.task
    WHERE p.state = 'active' AND p.holder <> '' AND p.holder = ? AND p.task > ?
    ORDER BY p.task LIMIT ?);

-- name: resume_push
UPDATE pushes SET state = 'active', note = '', holder = ''
WHERE task = ? AND id = ? AND state = 'parked';

-- name: take_pushes
UPDATE pushes SET holder = ? WHERE task = ? AND state = 'active' AND holder = '';

-- What follows removes what is old, a piece at a time. A size is in bytes, and 200 for each row.
-- Whatever goes along a log or a history reads all of each row, so it is to go no further than it
-- must: results are taken row by row, and only as many as are needed.

-- name: ended
-- Tasks that ended before a moment, each with the size of its stored form, and the number and the
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

-- name: remove_logs
DELETE FROM log WHERE task IN (SELECT value FROM json_each(?));

-- name: log_slice
-- The place up to which a log has so many bytes; none when it has less.
SELECT seq, sub FROM (
    SELECT seq, sub, sum(size) OVER (ORDER BY seq, sub ROWS UNBOUNDED PRECEDING) AS bytes
    FROM (
        SELECT seq, sub, length(payload) + 200 AS size FROM log
        WHERE task = :task ORDER BY seq, sub LIMIT :records))
WHERE bytes >= :bytes ORDER BY seq, sub LIMIT 1;

-- name: remove_slice
-- Remove the first records of the log of a task that is gone.
DELETE FROM log WHERE task = ? AND (seq, sub) <= (?, ?);

-- name: cut_log
-- The key of the task whose log is removed slice by slice, the task being gone already; or 0.
SELECT user_version FROM pragma_user_version;

-- name: old_receipts
-- Whether there are receipts older than a moment.
SELECT EXISTS (SELECT 1 FROM receipts WHERE agent = ? AND at < ?);

-- name: remove_receipts
-- Remove the oldest: as few as have so many bytes, one at least.
DELETE FROM receipts WHERE (agent, tenant, owner, message_id) IN (
    SELECT agent, tenant, owner, message_id FROM (
        SELECT agent, tenant, owner, message_id, sum(size) OVER (
            ORDER BY at, tenant, owner, message_id ROWS UNBOUNDED PRECEDING) - size AS bytes
        FROM (
            SELECT agent, tenant, owner, message_id, at, length(reply) + 200 AS size FROM receipts
            WHERE agent = :agent AND at < :before
            ORDER BY at, tenant, owner, message_id LIMIT :records))
    WHERE bytes < :bytes);

-- name: idle_contexts
-- Contexts that nobody used since a moment, and that have no tasks, with their sizes.
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
-- Remove the histories of contexts that are gone.
DELETE FROM history WHERE context IN (
    SELECT value FROM json_each(?) WHERE value NOT IN (SELECT key FROM contexts WHERE key = value));

-- name: remove_values_of
-- Remove the values of contexts that are gone.
DELETE FROM context_values WHERE context IN (
    SELECT value FROM json_each(?) WHERE value NOT IN (SELECT key FROM contexts WHERE key = value));
