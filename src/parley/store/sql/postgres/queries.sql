-- {schema} is the schema of the store. What a group of jobs writes is put together from pieces, in
-- postgres_batch.py. Records are read joined by newlines, their fields by spaces, which do not
-- occur in compact JSON: one value is much cheaper to take apart than many rows.

-- name: heads
SELECT
    version, key, task_id, agent, tenant, owner, context_id, state, status_at, seq, sub, turn,
    turn_open, waiting, cancel_requested, epoch, ended_at, holder, place, messages,
    has_status_message, folded
FROM {schema}.tasks WHERE task_id = ANY(%s);

-- name: lock_heads
SELECT
    version, key, task_id, agent, tenant, owner, context_id, state, status_at, seq, sub, turn,
    turn_open, waiting, cancel_requested, epoch, ended_at, holder, place, messages,
    has_status_message, folded
FROM {schema}.tasks WHERE task_id = ANY(%s) ORDER BY key FOR NO KEY UPDATE;

-- What is asked for of the stored form of a task t, for ``load`` and ``list``.

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
-- How many bytes that has, without reading them.
(SELECT coalesce(sum(octet_length(m.body)), 0) FROM {schema}.task_messages m
WHERE m.task = t.key AND m.n > 0
    AND m.n > t.messages - t.has_status_message::int - %(history)s::bigint)
+ (SELECT coalesce(sum(octet_length(a.head) + octet_length(a.parts)), 0)
FROM {schema}.task_artifacts a WHERE %(artifacts)s AND a.task = t.key)
+ (SELECT coalesce(sum(octet_length(l.payload)), 0) FROM {schema}.log l
WHERE %(artifacts)s AND l.task = t.key AND l.seq > t.folded AND l.sub = 0 AND l.kind = 'artifact')

-- name: load
-- A task's head and its stored form; nothing of a task of another scope.
SELECT
    t.agent, t.tenant, t.owner, t.seq, t.turn, t.turn_open, t.waiting, t.epoch, t.cancel_requested,
    t.holder, t.context_id, t.state, t.status_at, {status_message}, {metadata}, {task_history},
    {artifacts}, {tail}
FROM {schema}.tasks t
WHERE t.task_id = %(task_id)s AND (%(any_scope)s
    OR t.agent = %(agent)s AND t.tenant = %(tenant)s AND t.owner = %(owner)s);

-- name: events
-- Public events after a number, until so many or so many bytes.
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
-- Private records of some kinds behind a place.
SELECT string_agg(
    convert_to(seq || ' ' || sub || ' ' || turn || ' ' || kind || ' ' || at || ' ', 'UTF8')
        || payload, '\x0a'::bytea ORDER BY seq, sub)
FROM (
    SELECT seq, sub, turn, kind, at, payload FROM {schema}.log
    WHERE task = (SELECT key FROM {schema}.tasks WHERE task_id = %(task_id)s) AND sub > 0
        AND kind = ANY(%(kinds)s) AND seq >= %(seq)s AND (seq, sub) > (%(seq)s, %(sub)s)
    ORDER BY seq, sub LIMIT %(limit)s) behind;

-- name: waiting_messages
-- The last messages that came, as many as no turn has taken: the oldest of these.
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
-- One page of tasks, the last updated first, until so many or so many bytes; and before it a row
-- with how many there are, and how many were found for the page.
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
-- How many tasks of a scope there are, by state.
SELECT coalesce(sum(n), 0) FROM {schema}.task_counts
WHERE agent = %(agent)s AND tenant = %(tenant)s AND owner = %(owner)s
    AND (%(state)s = '' OR state = %(state)s)

-- name: count_between
-- How many tasks in some states have a status of a span of time.
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
-- Claim an agent's tasks that nobody holds and that have work left. What another replica is about
-- to take is passed over. No row at all says that this replica was buried.
WITH me AS MATERIALIZED (
    SELECT 1 FROM {schema}.replicas
    WHERE id = %(replica)s AND generation = %(generation)s AND buried_at IS NULL FOR UPDATE),
found AS MATERIALIZED (
    SELECT key FROM {schema}.tasks
    WHERE ended_at IS NULL AND (holder <> '' OR turn_open OR waiting > 0 OR cancel_requested)
        AND holder = '' AND agent = %(agent)s
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
SELECT
    version, key, task_id, agent, tenant, owner, context_id, state, status_at, seq, sub, turn,
    turn_open, waiting, cancel_requested, epoch, ended_at, holder, place, messages,
    has_status_message, folded
FROM me LEFT JOIN taken ON true ORDER BY place, key;

-- name: adopted
SELECT
    version, key, task_id, agent, tenant, owner, context_id, state, status_at, seq, sub, turn,
    turn_open, waiting, cancel_requested, epoch, ended_at, holder, place, messages,
    has_status_message, folded
FROM {schema}.tasks WHERE key = ANY(%s) AND holder = %s ORDER BY place, key;

-- name: unclaimed
-- How many tasks there are to adopt, by agent, up to a number each.
WITH RECURSIVE agents (agent) AS (
    (SELECT agent FROM {schema}.tasks
    WHERE ended_at IS NULL AND (holder <> '' OR turn_open OR waiting > 0 OR cancel_requested)
        AND holder = ''
    ORDER BY agent LIMIT 1)
    UNION ALL
    SELECT (
        SELECT t.agent FROM {schema}.tasks t
        WHERE t.ended_at IS NULL
            AND (t.holder <> '' OR t.turn_open OR t.waiting > 0 OR t.cancel_requested)
            AND t.holder = '' AND t.agent > agents.agent
        ORDER BY t.agent LIMIT 1)
    FROM agents WHERE agents.agent IS NOT NULL)
SELECT agents.agent, (
    SELECT count(*) FROM (
        SELECT 1 FROM {schema}.tasks t
        WHERE t.ended_at IS NULL
            AND (t.holder <> '' OR t.turn_open OR t.waiting > 0 OR t.cancel_requested)
            AND t.holder = '' AND t.agent = agents.agent
        LIMIT %s) first)
FROM agents WHERE agents.agent IS NOT NULL;

-- name: first_queued
SELECT place FROM {schema}.tasks
WHERE ended_at IS NULL AND (holder <> '' OR turn_open OR waiting > 0 OR cancel_requested)
    AND holder = '' AND agent = %s AND place > 0
ORDER BY place LIMIT 1;

-- name: holding
SELECT task_id FROM {schema}.tasks
WHERE ended_at IS NULL AND (holder <> '' OR turn_open OR waiting > 0 OR cancel_requested)
    AND holder = %s AND (turn_open OR waiting > 0 OR cancel_requested)
ORDER BY key;

-- name: scope_of
SELECT agent, tenant, owner FROM {schema}.tasks WHERE task_id = %s;

-- name: places
SELECT task_id, seq, sub, epoch, holder, waiting, cancel_requested, ended_at IS NOT NULL
FROM {schema}.tasks WHERE task_id = ANY(%s);

-- name: replicas
SELECT r.id, r.seen_at,
    r.buried_at IS NULL
        AND r.seen_at + r.lives_for >= (extract(epoch FROM clock_timestamp()) * 1000)::bigint,
    (SELECT count(*) FROM {schema}.tasks t
    WHERE t.ended_at IS NULL
        AND (t.holder <> '' OR t.turn_open OR t.waiting > 0 OR t.cancel_requested)
        AND t.holder = r.id)
FROM {schema}.replicas r WHERE NOT r.freed ORDER BY r.id;

-- name: parked
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

-- name: put_value
WITH context AS (
    INSERT INTO {schema}.contexts (agent, tenant, owner, context_id, said, touched_at)
    VALUES (%(agent)s, %(tenant)s, %(owner)s, %(context_id)s, 0, %(at)s)
    ON CONFLICT (agent, tenant, owner, context_id) DO UPDATE SET
        touched_at = greatest(contexts.touched_at, excluded.touched_at)
    RETURNING key)
INSERT INTO {schema}.context_values (context, name, value)
SELECT key, %(name)s, %(value)s FROM context
ON CONFLICT (context, name) DO UPDATE SET value = excluded.value;

-- name: remove_value
WITH context AS (
    INSERT INTO {schema}.contexts (agent, tenant, owner, context_id, said, touched_at)
    VALUES (%(agent)s, %(tenant)s, %(owner)s, %(context_id)s, 0, %(at)s)
    ON CONFLICT (agent, tenant, owner, context_id) DO UPDATE SET
        touched_at = greatest(contexts.touched_at, excluded.touched_at)
    RETURNING key)
DELETE FROM {schema}.context_values v USING context
WHERE v.context = context.key AND v.name = %(name)s;

-- name: compare_and_set
-- Keep, change or remove a value that is still as expected. Of two at once the second finds the row
-- as the first left it. The writer's row says whether it was done, should the answer be lost.
WITH me AS MATERIALIZED (
    SELECT 1 FROM {schema}.replicas
    WHERE id = %(replica)s AND generation = %(generation)s AND buried_at IS NULL FOR UPDATE),
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
SELECT p.config, p.version, p.revision, p.cursor, p.state, p.note, p.holder
FROM {schema}.tasks t JOIN {schema}.pushes p ON p.task = t.key
WHERE t.task_id = %s ORDER BY p.id;

-- name: remove_push
DELETE FROM {schema}.pushes
WHERE task = (SELECT key FROM {schema}.tasks WHERE task_id = %s) AND id = %s;

-- name: claim_pushes
-- Take over an agent's webhooks that nobody tells, of the oldest tasks that have any.
WITH me AS MATERIALIZED (
    SELECT 1 FROM {schema}.replicas
    WHERE id = %(replica)s AND generation = %(generation)s AND buried_at IS NULL FOR UPDATE),
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

-- name: undelivered
-- Whether nobody tells some webhook of these agents; then those that a replica tells, in order.
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

-- name: adopted_pushes
SELECT task_id FROM {schema}.tasks WHERE key = ANY(%s) ORDER BY key;

-- name: prune
-- Remove tasks that ended before a moment, up to so many and about so many records.
WITH few AS MATERIALIZED (
    SELECT key, seq, sum(seq) OVER (ORDER BY ended_at, key) - seq AS records_before FROM (
        SELECT key, seq, ended_at FROM {schema}.tasks
        WHERE agent = %(agent)s AND ended_at IS NOT NULL AND ended_at < %(before)s
        ORDER BY ended_at LIMIT %(limit)s) first),
gone AS MATERIALIZED (
    DELETE FROM {schema}.tasks t USING few
    WHERE t.key = few.key AND few.records_before < %(records)s
    RETURNING t.key, t.agent, t.tenant, t.owner, t.state),
records AS (DELETE FROM {schema}.log l USING gone WHERE l.task = gone.key),
messages AS (DELETE FROM {schema}.task_messages m USING gone WHERE m.task = gone.key),
artifacts AS (DELETE FROM {schema}.task_artifacts a USING gone WHERE a.task = gone.key),
pushes AS (DELETE FROM {schema}.pushes p USING gone WHERE p.task = gone.key),
counted AS (
    INSERT INTO {schema}.task_counts (agent, tenant, owner, state, slot, n)
    SELECT agent, tenant, owner, state, %(slot)s, -count(*) FROM gone
    GROUP BY agent, tenant, owner, state ORDER BY agent, tenant, owner, state
    ON CONFLICT (agent, tenant, owner, state, slot) DO UPDATE SET n = task_counts.n + excluded.n)
SELECT count(*) FROM gone;

-- name: prune_receipts
WITH gone AS (
    DELETE FROM {schema}.receipts WHERE (agent, tenant, owner, message_id) IN (
        SELECT agent, tenant, owner, message_id FROM {schema}.receipts
        WHERE agent = %(agent)s AND at < %(before)s ORDER BY at LIMIT %(limit)s)
        AND at < %(before)s
    RETURNING 1)
SELECT count(*) FROM gone;

-- name: prune_contexts
-- Remove contexts that nobody used since a moment, and that have no tasks.
WITH gone AS (
    DELETE FROM {schema}.contexts WHERE key IN (
        SELECT c.key FROM {schema}.contexts c
        WHERE c.agent = %(agent)s AND c.touched_at < %(before)s AND NOT EXISTS (
            SELECT 1 FROM {schema}.tasks t
            WHERE t.agent = c.agent AND t.tenant = c.tenant AND t.owner = c.owner
                AND t.context_id = c.context_id)
        ORDER BY c.touched_at LIMIT %(limit)s)
        AND touched_at < %(before)s
    RETURNING key),
history AS (DELETE FROM {schema}.history h USING gone WHERE h.context = gone.key),
kept AS (DELETE FROM {schema}.context_values v USING gone WHERE v.context = gone.key)
SELECT count(*) FROM gone;

-- name: register
INSERT INTO {schema}.replicas (id, seen_at, lives_for, generation)
VALUES (
    %(replica)s, (extract(epoch FROM clock_timestamp()) * 1000)::bigint, %(lives_for)s,
    nextval('{schema}.generations'))
ON CONFLICT (id) DO NOTHING;

-- name: begin_anew
-- Move the writer's generation, after which no group of before can be committed any more, and
-- return the number of the last that was, with what was found out when it was written.
UPDATE {schema}.replicas SET
    generation = nextval('{schema}.generations'), buried_at = NULL, freed = false,
    seen_at = (extract(epoch FROM clock_timestamp()) * 1000)::bigint
WHERE id = %s
RETURNING generation, grp, missed, noted;

-- name: writer_number
SELECT nextval('{schema}.writers');

-- name: beat
UPDATE {schema}.replicas SET
    seen_at = (extract(epoch FROM clock_timestamp()) * 1000)::bigint
WHERE id = %s
RETURNING seen_at, buried_at IS NOT NULL;

-- name: now
SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint;

-- name: revive
-- A replica that was buried is there again. Its writer learns of its new generation by itself.
UPDATE {schema}.replicas SET
    buried_at = NULL, freed = false, generation = nextval('{schema}.generations'),
    seen_at = (extract(epoch FROM clock_timestamp()) * 1000)::bigint
WHERE id = %s AND buried_at IS NOT NULL;

-- name: bury
-- Mark those that were not heard of for longer than they live. Their writers are fenced by it. Who
-- was heard of at a moment that is yet to come was so by a clock that was set back since then, or by
-- that of a server whose place another took: that counts as now.
WITH ahead AS (
    UPDATE {schema}.replicas SET seen_at = (extract(epoch FROM clock_timestamp()) * 1000)::bigint
    WHERE id IN (
        SELECT id FROM {schema}.replicas
        WHERE buried_at IS NULL
            AND seen_at > (extract(epoch FROM clock_timestamp()) * 1000)::bigint + 1000
        ORDER BY id FOR UPDATE SKIP LOCKED))
UPDATE {schema}.replicas SET
    buried_at = (extract(epoch FROM clock_timestamp()) * 1000)::bigint, freed = false,
    generation = nextval('{schema}.generations')
WHERE id IN (
    SELECT id FROM {schema}.replicas
    WHERE buried_at IS NULL
        AND seen_at + lives_for < (extract(epoch FROM clock_timestamp()) * 1000)::bigint
    ORDER BY id FOR UPDATE SKIP LOCKED)
RETURNING id;

-- name: free
-- Nobody holds what the buried held. It is another statement than the one that buried them, so
-- that it sees all that they wrote before they were fenced. One replica at a time does it.
WITH gate AS MATERIALIZED (SELECT pg_try_advisory_xact_lock(%(lock)s) AS is_open),
dead AS MATERIALIZED (
    SELECT id FROM {schema}.replicas, gate
    WHERE gate.is_open AND buried_at IS NOT NULL AND NOT freed FOR UPDATE OF replicas),
tasks AS (
    UPDATE {schema}.tasks t
    SET version = t.version + 1, epoch = t.epoch + 1, holder = '', place = 0
    FROM dead
    WHERE t.ended_at IS NULL
        AND (t.holder <> '' OR t.turn_open OR t.waiting > 0 OR t.cancel_requested)
        AND t.holder = dead.id
    RETURNING t.agent),
pushes AS (
    UPDATE {schema}.pushes p SET holder = '' FROM dead
    WHERE p.state = 'active' AND p.holder <> '' AND p.holder = dead.id),
done AS (
    UPDATE {schema}.replicas r SET freed = true FROM dead
    WHERE r.id = dead.id RETURNING r.id)
SELECT (SELECT count(*) FROM done), (SELECT count(*) FROM tasks);

-- name: forget
-- Forget those that were buried long ago.
DELETE FROM {schema}.replicas
WHERE freed AND buried_at < (extract(epoch FROM clock_timestamp()) * 1000)::bigint - 86400000;

-- name: leave
-- A replica that closes is gone at once, and nobody holds what it held.
UPDATE {schema}.replicas SET
    buried_at = (extract(epoch FROM clock_timestamp()) * 1000)::bigint, freed = false,
    generation = nextval('{schema}.generations')
WHERE id = %s;

-- name: leave_tasks
UPDATE {schema}.tasks SET version = version + 1, epoch = epoch + 1, holder = '', place = 0
WHERE ended_at IS NULL AND (holder <> '' OR turn_open OR waiting > 0 OR cancel_requested)
    AND holder = %s AND holder <> '';

-- name: leave_pushes
UPDATE {schema}.pushes SET holder = '' WHERE state = 'active' AND holder = %s AND holder <> '';

-- name: left
DELETE FROM {schema}.replicas WHERE id = %s;
