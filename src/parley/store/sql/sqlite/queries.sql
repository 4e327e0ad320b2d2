-- What the store reads and writes. At every step of a statement its thread gives up the
-- interpreter and waits for it (database/gil_yield.py). So a bulk write is many rows of
-- one VALUES, and a bulk read returns one value: records joined by line feeds, their fields by
-- spaces, tasks by the control characters 28 to 31. Compact JSON has none of these.

-- piece: heads_as_json
-- Heads of tasks, in the order of ``head_from_row``.
json_group_array(json_array(
    key, task_id, agent, tenant, owner, context_id, state, status_at, seq, sub, turn, turn_open,
    waiting, cancel_requested, epoch, ended_at, holder, place, messages, has_status_message,
    folded, wakes_at, base_url))

-- piece: active
-- A task t is claimed or has work left. The same words are the condition of an index.
t.ended_at IS NULL AND (t.holder <> '' OR t.turn_open OR t.waiting OR t.cancel_requested)

-- name: heads
-- The heads of several tasks, given as a JSON array of ids.
SELECT {heads_as_json}
FROM tasks WHERE task_id IN (SELECT value FROM json_each(?));

-- name: add_heads
INSERT INTO tasks (
    key, seq, sub, turn, epoch, messages, has_status_message, folded, turn_open, waiting,
    cancel_requested, holder, place, wakes_at, state, status_at, ended_at, task_id, agent, tenant,
    owner, context_id, base_url)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- Heads that moved. An update rewrites the entry in every index of one of its columns, changed or
-- not; hence four of them, by what changed.

-- piece: position
seq = moved.seq, sub = moved.sub, turn = moved.turn, epoch = moved.epoch,
    messages = moved.messages, has_status_message = moved.has_status_message,
    folded = moved.folded

-- piece: work
turn_open = moved.turn_open, waiting = moved.waiting,
    cancel_requested = moved.cancel_requested, holder = moved.holder, place = moved.place,
    wakes_at = moved.wakes_at

-- name: move_heads
-- Only the log grew.
WITH moved (key, seq, sub, turn, epoch, messages, has_status_message, folded) AS (
    VALUES (?, ?, ?, ?, ?, ?, ?, ?))
UPDATE tasks SET
    {position}
FROM moved WHERE tasks.key = moved.key;

-- name: change_heads
-- The status changed too.
WITH moved (
    key, seq, sub, turn, epoch, messages, has_status_message, folded, state, status_at) AS (
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?))
UPDATE tasks SET
    {position},
    state = moved.state, status_at = moved.status_at
FROM moved WHERE tasks.key = moved.key;

-- name: turn_heads
-- The lease changed, or the work left.
WITH moved (
    key, seq, sub, turn, epoch, messages, has_status_message, folded, turn_open, waiting,
    cancel_requested, holder, place, wakes_at) AS (
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?))
UPDATE tasks SET
    {position},
    {work}
FROM moved WHERE tasks.key = moved.key;

-- name: rewrite_heads
-- Both, or the task ended.
WITH moved (
    key, seq, sub, turn, epoch, messages, has_status_message, folded, turn_open, waiting,
    cancel_requested, holder, place, wakes_at, state, status_at, ended_at) AS (
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?))
UPDATE tasks SET
    {position},
    {work},
    state = moved.state, status_at = moved.status_at, ended_at = moved.ended_at
FROM moved WHERE tasks.key = moved.key;

-- name: count_tasks
-- Add to the number of tasks in a state.
INSERT INTO task_counts (agent, tenant, owner, state, n)
VALUES (?, ?, ?, ?, ?)
ON CONFLICT (agent, tenant, owner, state) DO UPDATE SET n = n + excluded.n;

-- name: add_records
INSERT INTO log (task, seq, sub, turn, kind, at, payload)
VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: add_messages
-- Messages of tasks, in order; 0 is a task's metadata.
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
-- The last key in use. A log that is partly removed has one too (see ``remove_slice``).
SELECT max(coalesce((SELECT max(key) FROM tasks), 0), user_version) FROM pragma_user_version;

-- The stored form of a task t, for ``load`` and ``list``.

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
-- The size of all that in bytes, without reading it.
(SELECT coalesce(sum(length(m.body)), 0) FROM task_messages m
WHERE m.task = t.key AND m.n > max(0, t.messages - t.has_status_message - :history))
+ (SELECT coalesce(sum(length(a.head) + length(a.parts)), 0) FROM task_artifacts a
WHERE :artifacts AND a.task = t.key)
+ (SELECT coalesce(sum(length(l.payload)), 0) FROM log l
WHERE :artifacts AND l.task = t.key AND l.seq > t.folded AND l.sub = 0 AND l.kind = 'artifact')

-- name: load
-- A task's head and its stored form, unless it is of another scope.
SELECT
    t.agent, t.tenant, t.owner, t.seq, t.turn, t.turn_open, t.waiting, t.epoch, t.cancel_requested,
    t.holder, t.wakes_at, t.base_url, t.context_id, t.state, t.status_at, {status_message},
    {metadata}, {task_history}, {artifacts}, {tail}
FROM tasks t
WHERE t.task_id = :task_id AND (:any_scope
    OR t.agent = :agent AND t.tenant = :tenant AND t.owner = :owner);

-- name: events
-- Public events with a number above ``after``, up to ``limit`` and about ``bytes`` bytes.
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
-- Private records of some kinds after a position.
SELECT CAST(group_concat(line, char(10)) AS BLOB) FROM (
    SELECT seq || ' ' || sub || ' ' || turn || ' ' || kind || ' ' || at || ' ' || payload AS line
    FROM log INDEXED BY log_of_kind
    WHERE task = (SELECT key FROM tasks WHERE task_id = :task_id) AND sub > 0
        AND kind IN (SELECT value FROM json_each(:kinds))
        AND seq >= :seq AND (seq, sub) > (:seq, :sub)
    ORDER BY seq, sub LIMIT :limit);

-- name: waiting_messages
-- The messages that no turn has taken: the last ``waiting`` ones received, the oldest first.
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
-- The number of a scope's tasks, of all states or one.
SELECT coalesce(sum(n), 0) FROM task_counts
WHERE agent = :agent AND tenant = :tenant AND owner = :owner AND (:state = '' OR state = :state);

-- name: count_between
-- The number of tasks in one state with a status from a span of time.
SELECT count(*) FROM tasks
WHERE agent = :agent AND tenant = :tenant AND owner = :owner AND state = :state
    AND status_at BETWEEN :first AND :last;

-- name: count_in_context
SELECT count(*) FROM tasks INDEXED BY tasks_in_context
WHERE agent = :agent AND tenant = :tenant AND owner = :owner AND context_id = :context_id
    AND status_at BETWEEN :first AND :last
    AND (:state = '' OR state = :state);

-- name: claimable
-- The heads of an agent's unclaimed tasks with work left.
SELECT {heads_as_json}
FROM (
    SELECT * FROM tasks t INDEXED BY tasks_under_way
    WHERE {active} AND holder = '' AND agent = ?
    ORDER BY place, key LIMIT ?);

-- name: unclaimed
-- The number of unclaimed tasks by agent, each counted up to a limit.
WITH RECURSIVE agents (agent) AS (
    SELECT min(agent) FROM tasks t INDEXED BY tasks_under_way
    WHERE {active} AND holder = ''
    UNION ALL
    SELECT (
        SELECT min(t.agent) FROM tasks t INDEXED BY tasks_under_way
        WHERE {active} AND t.holder = '' AND t.agent > agents.agent)
    FROM agents WHERE agents.agent IS NOT NULL)
SELECT agents.agent, (
    SELECT count(*) FROM (
        SELECT 1 FROM tasks t INDEXED BY tasks_under_way
        WHERE {active} AND t.holder = '' AND t.agent = agents.agent
        LIMIT ?))
FROM agents WHERE agents.agent IS NOT NULL;

-- name: first_queued
SELECT place FROM tasks t INDEXED BY tasks_under_way
WHERE {active} AND holder = '' AND agent = ? AND place > 0
ORDER BY place LIMIT 1;

-- name: queued_since
SELECT (SELECT at FROM log WHERE task = first.key ORDER BY seq DESC, sub DESC LIMIT 1)
FROM (
    SELECT key FROM tasks t INDEXED BY tasks_under_way
    WHERE {active} AND holder = '' AND agent = ? AND place > 0
    ORDER BY place LIMIT 1) first;

-- name: held_tasks
SELECT task_id FROM tasks t INDEXED BY tasks_under_way
WHERE {active} AND holder = ? AND (turn_open OR waiting OR cancel_requested)
ORDER BY key;

-- name: count_held
-- The number of tasks that a replica holds.
SELECT count(*) FROM tasks t INDEXED BY tasks_under_way
WHERE {active} AND holder = ?;

-- name: scope_of
SELECT agent, tenant, owner FROM tasks WHERE task_id = ?;

-- name: positions
-- The positions of the logs of several tasks, given as a JSON array of ids.
SELECT json_group_array(json_array(
    task_id, seq, sub, epoch, holder, waiting, cancel_requested, ended_at IS NOT NULL))
FROM tasks WHERE task_id IN (SELECT value FROM json_each(?));

-- name: release_tasks
-- Release the leases of the process before, and fence its writer. Sleeping tasks sleep on.
UPDATE tasks AS t INDEXED BY tasks_under_way SET epoch = epoch + 1, holder = '', place = 0
WHERE {active} AND holder > '' AND holder < '~';

-- name: release_pushes
UPDATE pushes INDEXED BY pushes_held SET holder = ''
WHERE state = 'active' AND holder <> '' AND holder > '';

-- name: awaiting_input
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
-- Note that a context was used, and how many messages were added to it.
INSERT INTO contexts (agent, tenant, owner, context_id, said, touched_at)
VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (agent, tenant, owner, context_id) DO UPDATE SET
    said = said + excluded.said, touched_at = excluded.touched_at;

-- name: add_history
-- Add a message, by its distance from the last one.
INSERT INTO history (context, n, message)
SELECT key, said - ?5, ?6 FROM contexts
WHERE agent = ?1 AND tenant = ?2 AND owner = ?3 AND context_id = ?4;

-- name: trim_history
-- Delete all but the last messages.
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
SELECT p.config, p.version, p.revision, p.cursor, p.state, p.note, p.holder, p.options, p.attempts,
    p.confirmed
FROM tasks t JOIN pushes p ON p.task = t.key WHERE t.task_id = ? ORDER BY p.id;

-- name: push_attempts
-- The last attempts of a webhook, in no order.
SELECT a.body FROM tasks t JOIN push_attempts a ON a.task = t.key
WHERE t.task_id = ? AND a.push = ?;

-- name: add_attempt
-- An attempt takes the place of the one that had its slot.
INSERT INTO push_attempts (task, push, slot, body)
SELECT key, ?, ?, ? FROM tasks WHERE task_id = ?
ON CONFLICT (task, push, slot) DO UPDATE SET body = excluded.body;

-- name: put_push
-- A replacement keeps the cursor.
INSERT INTO pushes (
    task, id, agent, revision, config, version, cursor, state, note, holder, options, confirmed)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (task, id) DO UPDATE SET
    revision = excluded.revision, config = excluded.config, version = excluded.version,
    state = excluded.state, note = excluded.note, holder = excluded.holder,
    options = excluded.options, confirmed = excluded.confirmed;

-- name: save_delivery
UPDATE pushes SET cursor = ?, state = ?, note = ?, holder = ?, attempts = ?, confirmed = ?
WHERE task = (SELECT key FROM tasks WHERE task_id = ?) AND id = ? AND revision = ?;

-- name: remove_push
DELETE FROM pushes WHERE task = (SELECT key FROM tasks WHERE task_id = ?) AND id = ?;

-- name: remove_attempts_of
DELETE FROM push_attempts
WHERE task = (SELECT key FROM tasks WHERE task_id = ?) AND push = ?;

-- name: claimable_pushes
-- An agent's tasks with unclaimed webhooks, and true if one of those has events to deliver.
SELECT p.task, t.task_id, max(p.cursor < t.seq)
FROM pushes p INDEXED BY pushes_free JOIN tasks t ON t.key = p.task
WHERE p.state = 'active' AND p.holder = '' AND p.agent = ?
GROUP BY p.task ORDER BY p.task LIMIT ?;

-- name: active_pushes
-- The first row: true if a webhook of these agents is unclaimed. Then the webhooks that a replica
-- holds, in the order of their tasks.
SELECT EXISTS (
    SELECT 1 FROM pushes p INDEXED BY pushes_free
    WHERE p.state = 'active' AND p.holder = ''
        AND p.agent IN (SELECT value FROM json_each(:agents))), '', '', ''
UNION ALL
SELECT 0, task, task_id, revision FROM (
    SELECT p.task, t.task_id, p.revision
    FROM pushes p INDEXED BY pushes_held JOIN tasks t ON t.key = p.task
    WHERE p.state = 'active' AND p.holder <> '' AND p.holder = :replica AND p.task > :after
    ORDER BY p.task LIMIT :limit);

-- name: resume_push
UPDATE pushes SET state = 'active', note = '', holder = ''
WHERE task = ? AND id = ? AND state = 'parked';

-- name: claim_pushes
UPDATE pushes SET holder = ? WHERE task = ? AND state = 'active' AND holder = '';
