-- Queries over a whole store: its export and its status. {schema} is the prefix of a table's name,
-- {waiting} a truth value, {c} the order of texts by their bytes, {?} a parameter.

-- name: contexts
SELECT c.key, c.agent, c.tenant, c.owner, c.context_id,
    (SELECT count(*) FROM {schema}history h WHERE h.context = c.key), c.touched_at
FROM {schema}contexts c ORDER BY c.key;

-- name: messages
SELECT context, message FROM {schema}history ORDER BY context, n;

-- name: context_values
SELECT context, name, value FROM {schema}context_values ORDER BY context, name {c};

-- name: receipts
SELECT agent, tenant, owner, message_id, digest, task_id, turn, reply, at FROM {schema}receipts
ORDER BY agent {c}, tenant {c}, owner {c}, message_id {c};

-- name: tasks
SELECT key, task_id, agent, tenant, owner, context_id, state, status_at, seq, sub, turn, turn_open,
    waiting, cancel_requested, epoch, ended_at,
    CASE WHEN holder = '' AND ended_at IS NULL AND (turn_open OR {waiting} OR cancel_requested)
        THEN place ELSE 0 END,
    wakes_at, base_url
FROM {schema}tasks ORDER BY key;

-- name: events
SELECT agent, name, at, value FROM {schema}events ORDER BY agent {c}, name {c};

-- name: event_waits
-- The events that sleeping tasks wait for.
SELECT w.task, w.name FROM {schema}event_waits w JOIN {schema}tasks t ON t.key = w.task
WHERE t.wakes_at IS NOT NULL ORDER BY w.task, w.name {c};

-- name: records
SELECT task, seq, sub, turn, kind, at, payload FROM {schema}log ORDER BY task, seq, sub;

-- name: pushes
SELECT task, config, version, revision, cursor, state, note, options, confirmed FROM {schema}pushes
ORDER BY task, id {c};

-- name: count_by_state
SELECT agent, state, CAST(sum(n) AS bigint) FROM {schema}task_counts
GROUP BY agent, state HAVING sum(n) <> 0 ORDER BY agent {c}, state {c};

-- name: under_way
-- Tasks with work left that are awake, by agent and by whether they have a lease owner, and since
-- when.
SELECT agent, CASE WHEN holder = '' THEN 0 ELSE 1 END AS is_held, count(*), min(status_at)
FROM {schema}tasks
WHERE ended_at IS NULL AND (holder <> '' OR turn_open OR {waiting} OR cancel_requested)
    AND (turn_open OR {waiting} OR cancel_requested) AND wakes_at IS NULL
GROUP BY agent, CASE WHEN holder = '' THEN 0 ELSE 1 END
ORDER BY agent {c}, 2;

-- name: asleep
-- Sleeping tasks by agent, and when the next of them wakes up.
SELECT agent, count(*), min(wakes_at) FROM {schema}tasks
WHERE wakes_at IS NOT NULL GROUP BY agent ORDER BY agent {c};

-- name: count_events
SELECT count(*) FROM {schema}events;

-- name: count_pushes
SELECT state, count(*) FROM {schema}pushes GROUP BY state ORDER BY state {c};

-- name: count_contexts
SELECT count(*) FROM {schema}contexts;

-- name: count_receipts
SELECT count(*) FROM {schema}receipts;

-- name: agents
SELECT agent FROM {schema}task_counts UNION SELECT agent FROM {schema}receipts
UNION SELECT agent FROM {schema}contexts UNION SELECT agent FROM {schema}events ORDER BY 1;

-- name: old_tasks
SELECT count(*), CAST(coalesce(sum(seq), 0) AS bigint) FROM {schema}tasks
WHERE agent = {?} AND ended_at IS NOT NULL AND ended_at < {?};

-- name: old_receipts
SELECT count(*) FROM {schema}receipts WHERE agent = {?} AND at < {?};

-- name: suspended
-- Suspended webhooks after a position, in order: of an agent, a tenant, a task, an id; an empty value
-- selects all.
SELECT p.task, p.id, t.agent, t.tenant, t.owner, t.task_id, p.config, p.cursor, t.seq, p.note
FROM {schema}pushes p JOIN {schema}tasks t ON t.key = p.task
WHERE p.state = 'parked' AND (p.task > {?} OR (p.task = {?} AND p.id > {?}))
    AND ({?} = '' OR t.agent = {?}) AND ({?} = '' OR t.tenant = {?})
    AND ({?} = '' OR t.task_id = {?}) AND ({?} = '' OR p.id = {?})
ORDER BY p.task, p.id {c} LIMIT {?};

-- name: waiting
-- Active webhooks with a note, which wait for their receivers, after a position, in order: of an agent,
-- a tenant, a task, an id; an empty value selects all.
SELECT p.task, p.id, t.agent, t.tenant, t.owner, t.task_id, p.config, p.cursor, t.seq, p.note
FROM {schema}pushes p JOIN {schema}tasks t ON t.key = p.task
WHERE p.state = 'active' AND p.note <> '' AND (p.task > {?} OR (p.task = {?} AND p.id > {?}))
    AND ({?} = '' OR t.agent = {?}) AND ({?} = '' OR t.tenant = {?})
    AND ({?} = '' OR t.task_id = {?}) AND ({?} = '' OR p.id = {?})
ORDER BY p.task, p.id {c} LIMIT {?};

-- piece: found_task
t.key, t.task_id, t.agent, t.tenant, t.owner, t.context_id, t.state, t.seq, t.holder, t.wakes_at,
t.changed,
(SELECT l.payload FROM {schema}log l
    WHERE l.task = t.key AND l.seq = 1 AND l.sub = 1 AND l.kind = 'turn'),
(SELECT l.payload FROM {schema}log l WHERE l.task = t.key AND l.kind = 'turn' AND l.sub > 0
    ORDER BY l.seq DESC, l.sub DESC LIMIT 1)

-- piece: later_first
ORDER BY changed DESC, task_id DESC LIMIT {?}

-- name: task_groups
-- The callers of tasks, with the states of their tasks.
SELECT agent, tenant, owner, state FROM {schema}task_counts GROUP BY agent, tenant, owner, state
HAVING sum(n) <> 0;

-- name: tasks_of_agent
-- An agent's tasks before a time and an id, the last changed first: those that have ended, that wait
-- for their callers, and that are under way, each from its index (the last one has no agent first).
SELECT {found_task} FROM (
    SELECT * FROM (SELECT x.*, ended_at AS changed FROM {schema}tasks x
        WHERE agent = {?} AND ended_at IS NOT NULL AND (ended_at, task_id) < ({?}, {?})
            AND ({?} = '' OR state = {?}) {later_first}) a
    UNION ALL SELECT * FROM (SELECT x.*, status_at AS changed FROM {schema}tasks x
        WHERE agent = {?} AND ended_at IS NULL AND NOT (turn_open OR {waiting} OR cancel_requested)
            AND (status_at, task_id) < ({?}, {?}) AND ({?} = '' OR state = {?}) {later_first}) b
    UNION ALL SELECT * FROM (SELECT x.*, status_at AS changed FROM {schema}tasks x
        WHERE agent || '' = {?} AND ended_at IS NULL AND (turn_open OR {waiting} OR cancel_requested)
            AND (holder <> '' OR turn_open OR {waiting} OR cancel_requested)
            AND (status_at, task_id) < ({?}, {?}) AND ({?} = '' OR state = {?}) {later_first}) c
) t {later_first};

-- name: tasks_of_owner
-- A caller's tasks in a state before a time and an id, of one context or of all.
SELECT {found_task} FROM (SELECT x.*, status_at AS changed FROM {schema}tasks x
    WHERE agent = {?} AND tenant = {?} AND owner = {?} AND state = {?}
        AND (status_at, task_id) < ({?}, {?}) AND ({?} = '' OR context_id = {?}) {later_first}) t
{later_first};

-- name: tasks_of_context
SELECT {found_task} FROM (SELECT x.*, status_at AS changed FROM {schema}tasks x
    WHERE context_id = {?} AND (status_at, task_id) < ({?}, {?}) AND ({?} = '' OR state = {?})
    {later_first}) t
{later_first};

-- name: tasks_by_id
-- The first tasks whose ids are in a range.
SELECT {found_task} FROM (SELECT x.*, status_at AS changed FROM {schema}tasks x
    WHERE task_id >= {?} AND task_id < {?} ORDER BY task_id LIMIT {?}) t
ORDER BY task_id;

-- name: task_webhooks
SELECT id, config, cursor, state, note, attempts FROM {schema}pushes WHERE task = {?}
ORDER BY id {c};

-- name: task_attempts
SELECT push, body FROM {schema}push_attempts WHERE task = {?};
