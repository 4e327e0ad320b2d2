-- What the store reads, and what it writes outside of a group (batch.sql has the groups). {schema}
-- is the schema of the store. Records are read as one value, joined by line feeds, their fields by
-- spaces, which compact JSON has none of: one value is much cheaper to read than many rows.

-- name: limit_locks
-- Bound the waits of the rest of the transaction, so that a process that is stopped in it holds up
-- others only for a short time.
SELECT set_config('idle_in_transaction_session_timeout', '5s', true),
    set_config('lock_timeout', %s, true);

-- name: heads
SELECT {head}
FROM {schema}.tasks WHERE task_id = ANY(%s);

-- name: lock_heads
SELECT {head}
FROM {schema}.tasks WHERE task_id = ANY(%s) ORDER BY key FOR NO KEY UPDATE;

-- The stored form of a task t, for ``load`` and ``list``.

-- piece: status_message
(SELECT m.body FROM {schema}.task_messages m
WHERE m.task = t.key AND t.has_status_message AND m.n = t.messages)

-- piece: metadata
(SELECT m.body FROM {schema}.task_messages m WHERE m.task = t.key AND m.n = 0)

-- piece: task_history
(SELECT string_agg(m.body, ','::bytea ORDER BY m.n) FROM {schema}.task_messages m
WHERE m.task = t.key AND m.n > 0
    AND m.n > t.messages - t.has_status_message::int - %(history)s::bigint
    AND m.n <= t.messages - t.has_status_message::int)

-- piece: artifacts
(SELECT string_agg(
    convert_to(a.n::text, 'UTF8') || '\x1f'::bytea || a.head || '\x1f'::bytea || a.parts,
    '\x1e'::bytea ORDER BY a.n, a.seq)
FROM {schema}.task_artifacts a WHERE %(artifacts)s AND a.task = t.key)

-- piece: tail
(SELECT string_agg(
    convert_to(l.seq || ' 0 ' || l.turn || ' ' || l.kind || ' ' || l.at || ' ', 'UTF8')
        || l.payload, '\x0a'::bytea ORDER BY l.seq)
FROM {schema}.log l
WHERE %(artifacts)s AND l.task = t.key AND l.seq > t.folded AND l.sub = 0 AND l.kind = 'artifact')

-- piece: size
-- The size of all that in bytes, without reading it.
(SELECT coalesce(sum(octet_length(m.body)), 0) FROM {schema}.task_messages m
WHERE m.task = t.key AND m.n > 0
    AND m.n > t.messages - t.has_status_message::int - %(history)s::bigint)
+ (SELECT coalesce(sum(octet_length(a.head) + octet_length(a.parts)), 0)
FROM {schema}.task_artifacts a WHERE %(artifacts)s AND a.task = t.key)
+ (SELECT coalesce(sum(octet_length(l.payload)), 0) FROM {schema}.log l
WHERE %(artifacts)s AND l.task = t.key AND l.seq > t.folded AND l.sub = 0 AND l.kind = 'artifact')

-- name: load
-- A task's head and its stored form, unless it is of another scope.
SELECT
    t.agent, t.tenant, t.owner, t.seq, t.turn, t.turn_open, t.waiting, t.epoch, t.cancel_requested,
    t.holder, t.wakes_at, t.base_url, t.context_id, t.state, t.status_at, {status_message},
    {metadata}, {task_history}, {artifacts}, {tail}
FROM {schema}.tasks t
WHERE t.task_id = %(task_id)s AND (%(any_scope)s
    OR t.agent = %(agent)s AND t.tenant = %(tenant)s AND t.owner = %(owner)s);

-- name: events
-- Public events with a number above ``after``, up to ``limit`` and about ``bytes`` bytes.
SELECT string_agg(
    convert_to(seq || ' 0 ' || turn || ' ' || kind || ' ' || at || ' ', 'UTF8') || payload,
    '\x0a'::bytea ORDER BY seq)
FROM (
    SELECT *, sum(size) OVER (ORDER BY seq) - size AS held FROM (
        SELECT seq, turn, kind, at, payload, octet_length(payload) AS size
        FROM {schema}.log
        WHERE task = (SELECT key FROM {schema}.tasks WHERE task_id = %(task_id)s)
            AND sub = 0 AND seq > %(after)s
        ORDER BY seq LIMIT %(limit)s) first) sized
WHERE held < %(bytes)s;

-- name: private_records
-- Private records of some kinds after a position.
SELECT string_agg(
    convert_to(seq || ' ' || sub || ' ' || turn || ' ' || kind || ' ' || at || ' ', 'UTF8')
        || payload, '\x0a'::bytea ORDER BY seq, sub)
FROM (
    SELECT seq, sub, turn, kind, at, payload FROM {schema}.log
    WHERE task = (SELECT key FROM {schema}.tasks WHERE task_id = %(task_id)s) AND sub > 0
        AND kind = ANY(%(kinds)s) AND seq >= %(seq)s AND (seq, sub) > (%(seq)s, %(sub)s)
    ORDER BY seq, sub LIMIT %(limit)s) behind;

-- name: waiting_messages
-- The messages that no turn has taken: the last ``waiting`` ones received, the oldest first.
SELECT string_agg(
    convert_to(seq || ' ' || sub || ' ' || turn || ' received ' || at || ' ', 'UTF8') || payload,
    '\x0a'::bytea ORDER BY seq, sub)
FROM (
    SELECT l.seq, l.sub, l.turn, l.at, l.payload
    FROM (
        SELECT task, seq, sub FROM {schema}.log
        WHERE task = (SELECT key FROM {schema}.tasks WHERE task_id = %(task_id)s) AND sub > 0
            AND kind = 'received'
        ORDER BY seq DESC, sub DESC
        LIMIT (SELECT waiting FROM {schema}.tasks WHERE task_id = %(task_id)s)) w
    JOIN {schema}.log l USING (task, seq, sub)
    ORDER BY l.seq, l.sub LIMIT %(limit)s OFFSET %(skip)s) waiting;

-- name: list
-- One page of tasks, the last updated first, up to ``limit`` and about ``max_bytes`` bytes. The
-- first row has the total, and how many tasks were found for the page.
WITH found AS MATERIALIZED (
    SELECT * FROM (
        {found}) of_each
    ORDER BY status_at DESC, task_id DESC LIMIT %(limit)s + 1),
sized AS MATERIALIZED (
    SELECT
        t.key, t.task_id, t.context_id, t.state, t.status_at, t.messages, t.has_status_message,
        t.folded, ({size})::bigint AS size
    FROM found f JOIN {schema}.tasks t ON t.key = f.key),
page AS MATERIALIZED (
    SELECT *, sum(size) OVER (ORDER BY status_at DESC, task_id DESC) - size AS held,
        row_number() OVER (ORDER BY status_at DESC, task_id DESC) AS place
    FROM sized)
SELECT
    NULL::text AS task_id, NULL::text, NULL::text, NULL::bigint AS status_at, NULL::bytea,
    NULL::bytea, NULL::bytea, NULL::bytea, NULL::bytea, ({total})::bigint,
    (SELECT count(*) FROM found)
UNION ALL (
    SELECT
        t.task_id, t.context_id, t.state, t.status_at, {status_message}, {metadata},
        {task_history}, {artifacts}, {tail}, 0, 0
    FROM page t WHERE t.held < %(max_bytes)s AND t.place <= %(limit)s
    ORDER BY t.status_at DESC, t.task_id DESC);

-- name: found_in_state
(SELECT key, status_at, task_id FROM {schema}.tasks
WHERE agent = %(agent)s AND tenant = %(tenant)s AND owner = %(owner)s AND state = '{state}'
    AND status_at >= %(first)s AND status_at <= %(last)s
    AND (status_at, task_id) < (%(before_at)s, %(before_id)s)
ORDER BY status_at DESC, task_id DESC
LIMIT %(limit)s + 1)

-- name: found_in_context
SELECT key, status_at, task_id FROM {schema}.tasks
WHERE agent = %(agent)s AND tenant = %(tenant)s AND owner = %(owner)s
    AND context_id = %(context_id)s
    AND status_at >= %(first)s AND status_at <= %(last)s
    AND (%(state)s = '' OR state = %(state)s)
    AND (status_at, task_id) < (%(before_at)s, %(before_id)s)

-- name: total
-- The number of a scope's tasks, of all states or one.
SELECT coalesce(sum(n), 0) FROM {schema}.task_counts
WHERE agent = %(agent)s AND tenant = %(tenant)s AND owner = %(owner)s
    AND (%(state)s = '' OR state = %(state)s)

-- name: count_between
-- The number of tasks in some states with a status from a span of time.
SELECT count(*) FROM {schema}.tasks
WHERE agent = %(agent)s AND tenant = %(tenant)s AND owner = %(owner)s AND state = ANY(%(states)s)
    AND status_at >= {first} AND status_at <= {last}

-- name: count_in_context
SELECT count(*) FROM {schema}.tasks
WHERE agent = %(agent)s AND tenant = %(tenant)s AND owner = %(owner)s
    AND context_id = %(context_id)s
    AND status_at >= %(first)s AND status_at <= %(last)s
    AND (%(state)s = '' OR state = %(state)s)

-- name: claim_batch
-- Claim an agent's unclaimed tasks with work left. Tasks that another replica is claiming are
-- skipped. No row at all: the writer is fenced.
WITH {writer},
found AS MATERIALIZED (
    SELECT key FROM {schema}.tasks t
    WHERE {active} AND holder = '' AND agent = %(agent)s
    ORDER BY place, key LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED),
taken AS (
    UPDATE {schema}.tasks t
    SET version = t.version + 1, epoch = t.epoch + 1, holder = %(replica)s
    FROM found, me WHERE t.key = found.key
    RETURNING t.*),
noted AS (
    UPDATE {schema}.replicas r
    SET grp = %(grp)s, missed = '{}', noted = ARRAY(SELECT key FROM taken)
    FROM me WHERE r.id = %(replica)s)
SELECT {head}
FROM me LEFT JOIN taken ON true ORDER BY place, key;

-- name: claimed
-- What ``claim_batch`` claimed, when its answer was lost.
SELECT {head}
FROM {schema}.tasks WHERE key = ANY(%s) AND holder = %s ORDER BY place, key;

-- name: unclaimed
-- The number of unclaimed tasks by agent, each counted up to a limit.
WITH RECURSIVE agents (agent) AS (
    (SELECT agent FROM {schema}.tasks t
    WHERE {active} AND holder = ''
    ORDER BY agent LIMIT 1)
    UNION ALL
    SELECT (
        SELECT t.agent FROM {schema}.tasks t
        WHERE {active} AND t.holder = '' AND t.agent > agents.agent
        ORDER BY t.agent LIMIT 1)
    FROM agents WHERE agents.agent IS NOT NULL)
SELECT agents.agent, (
    SELECT count(*) FROM (
        SELECT 1 FROM {schema}.tasks t
        WHERE {active} AND t.holder = '' AND t.agent = agents.agent
        LIMIT %s) first)
FROM agents WHERE agents.agent IS NOT NULL;

-- name: first_queued
SELECT place FROM {schema}.tasks t
WHERE {active} AND holder = '' AND agent = %s AND place > 0
ORDER BY place LIMIT 1;

-- name: queued_since
SELECT (SELECT at FROM {schema}.log WHERE task = first.key ORDER BY seq DESC, sub DESC LIMIT 1)
FROM (
    SELECT key FROM {schema}.tasks t
    WHERE {active} AND holder = '' AND agent = %s AND place > 0
    ORDER BY place LIMIT 1) first;

-- name: held_tasks
SELECT task_id FROM {schema}.tasks t
WHERE {active} AND holder = %s AND (turn_open OR waiting > 0 OR cancel_requested)
ORDER BY key;

-- name: scope_of
SELECT agent, tenant, owner FROM {schema}.tasks WHERE task_id = %s;

-- name: positions
SELECT task_id, seq, sub, epoch, holder, waiting, cancel_requested, ended_at IS NOT NULL
FROM {schema}.tasks WHERE task_id = ANY(%s);

-- name: awaiting_input
SELECT task_id FROM {schema}.tasks
WHERE agent = %s AND ended_at IS NULL AND NOT (turn_open OR waiting > 0 OR cancel_requested)
    AND status_at < %s
ORDER BY status_at LIMIT %s;

-- name: receipt
SELECT message_id, digest, task_id, turn, reply FROM {schema}.receipts
WHERE agent = %s AND tenant = %s AND owner = %s AND message_id = %s;

-- name: history
SELECT string_agg(message, '\x0a'::bytea ORDER BY n) FROM (
    SELECT h.n, h.message
    FROM {schema}.contexts c JOIN {schema}.history h ON h.context = c.key
    WHERE c.agent = %s AND c.tenant = %s AND c.owner = %s AND c.context_id = %s
        AND h.n > c.said - {kept}
    ORDER BY h.n DESC LIMIT %s) last;

-- name: value
SELECT v.value FROM {schema}.contexts c JOIN {schema}.context_values v ON v.context = c.key
WHERE c.agent = %s AND c.tenant = %s AND c.owner = %s AND c.context_id = %s AND v.name = %s;

-- piece: used_context
-- The context, which was used just now, and is made if need be.
context AS (
    INSERT INTO {schema}.contexts (agent, tenant, owner, context_id, said, touched_at)
    VALUES (%(agent)s, %(tenant)s, %(owner)s, %(context_id)s, 0, %(at)s)
    ON CONFLICT (agent, tenant, owner, context_id) DO UPDATE SET
        touched_at = greatest(contexts.touched_at, excluded.touched_at)
    RETURNING key)

-- name: put_value
WITH {used_context}
INSERT INTO {schema}.context_values (context, name, value)
SELECT key, %(name)s, %(value)s FROM context
ON CONFLICT (context, name) DO UPDATE SET value = excluded.value;

-- name: remove_value
WITH {used_context}
DELETE FROM {schema}.context_values v USING context
WHERE v.context = context.key AND v.name = %(name)s;

-- name: compare_and_set
-- Set or remove a value that is still as expected. Of two at once, the second sees the row as the
-- first left it. The writer's row keeps the result, in case the answer is lost.
WITH {writer},
context AS (
    INSERT INTO {schema}.contexts (agent, tenant, owner, context_id, said, touched_at)
    SELECT %(agent)s, %(tenant)s, %(owner)s, %(context_id)s, 0, %(at)s::bigint FROM me
    ON CONFLICT (agent, tenant, owner, context_id) DO UPDATE SET
        touched_at = greatest(contexts.touched_at, excluded.touched_at)
    RETURNING key),
added AS (
    INSERT INTO {schema}.context_values (context, name, value)
    SELECT key, %(name)s, %(value)s::bytea FROM context WHERE %(expected)s::bytea IS NULL
    ON CONFLICT (context, name) DO NOTHING
    RETURNING 1),
changed AS (
    UPDATE {schema}.context_values v SET value = %(value)s::bytea FROM context
    WHERE v.context = context.key AND v.name = %(name)s AND v.value = %(expected)s::bytea
        AND %(value)s::bytea IS NOT NULL
    RETURNING 1),
removed AS (
    DELETE FROM {schema}.context_values v USING context
    WHERE v.context = context.key AND v.name = %(name)s AND v.value = %(expected)s::bytea
        AND %(value)s::bytea IS NULL
    RETURNING 1),
done AS MATERIALIZED (
    SELECT 1 FROM added UNION ALL SELECT 1 FROM changed UNION ALL SELECT 1 FROM removed),
noted AS (
    UPDATE {schema}.replicas r
    SET grp = %(grp)s, missed = '{}', noted = ARRAY(SELECT 1::bigint FROM done)
    FROM me WHERE r.id = %(replica)s)
SELECT EXISTS (SELECT 1 FROM done) FROM me;

-- name: pushes
-- The push notification configurations of a task, by id.
SELECT p.config, p.version, p.revision, p.cursor, p.state, p.note, p.holder, p.options, p.attempts,
    p.confirmed
FROM {schema}.tasks t JOIN {schema}.pushes p ON p.task = t.key
WHERE t.task_id = %s ORDER BY p.id;

-- name: push_attempts
-- The last attempts of a webhook, in no order.
SELECT a.body FROM {schema}.tasks t JOIN {schema}.push_attempts a ON a.task = t.key
WHERE t.task_id = %s AND a.push = %s;

-- name: remove_push
WITH gone AS (
    DELETE FROM {schema}.pushes
    WHERE task = (SELECT key FROM {schema}.tasks WHERE task_id = %s) AND id = %s
    RETURNING task, id)
DELETE FROM {schema}.push_attempts a USING gone WHERE a.task = gone.task AND a.push = gone.id;

-- name: claim_pushes
-- Claim an agent's unclaimed webhooks, those of the oldest tasks first.
WITH {writer},
few AS MATERIALIZED (
    SELECT DISTINCT p.task
    FROM {schema}.pushes p
    WHERE p.state = 'active' AND p.holder = '' AND p.agent = %(agent)s
    ORDER BY p.task LIMIT %(limit)s),
found AS MATERIALIZED (
    SELECT p.task, p.id FROM {schema}.pushes p JOIN few ON few.task = p.task
    WHERE p.state = 'active' AND p.holder = ''
    ORDER BY p.task, p.id FOR NO KEY UPDATE OF p SKIP LOCKED),
taken AS (
    UPDATE {schema}.pushes p SET holder = %(replica)s
    FROM found, me WHERE p.task = found.task AND p.id = found.id
    RETURNING p.task, p.cursor),
noted AS (
    UPDATE {schema}.replicas r
    SET grp = %(grp)s, missed = '{}', noted = ARRAY(SELECT DISTINCT task FROM taken)
    FROM me WHERE r.id = %(replica)s)
SELECT tasks.task_id, tasks.is_behind
FROM me LEFT JOIN (
    SELECT t.key, t.task_id, bool_or(taken.cursor < t.seq) AS is_behind
    FROM taken JOIN {schema}.tasks t ON t.key = taken.task
    GROUP BY t.key, t.task_id) tasks ON true
ORDER BY tasks.key;

-- name: active_pushes
-- The first row: true if a webhook of these agents is unclaimed. Then the webhooks that a replica
-- holds, in the order of their tasks.
SELECT EXISTS (
    SELECT 1 FROM {schema}.pushes p
    WHERE p.state = 'active' AND p.holder = '' AND p.agent = ANY(%(agents)s)) AS is_free,
    0::bigint AS task, '' AS task_id, '' AS revision
UNION ALL
SELECT false, held.task, t.task_id, held.revision
FROM (
    SELECT p.task, p.revision FROM {schema}.pushes p
    WHERE p.state = 'active' AND p.holder <> '' AND p.holder = %(replica)s
        AND p.task > %(after)s
    ORDER BY p.task LIMIT %(limit)s) held
JOIN {schema}.tasks t ON t.key = held.task
ORDER BY task;

-- name: claimed_pushes
-- What ``claim_pushes`` claimed, when its answer was lost.
SELECT task_id FROM {schema}.tasks WHERE key = ANY(%s) ORDER BY key;
