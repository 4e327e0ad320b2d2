-- Import, status and maintenance. {schema} is the schema of the store.

-- name: contexts_there
SELECT c.agent, c.tenant, c.owner, c.context_id
FROM unnest(%s::text[], %s::text[], %s::text[], %s::text[]) AS j (agent, tenant, owner, name)
JOIN {schema}.contexts c ON c.agent = j.agent AND c.tenant = j.tenant AND c.owner = j.owner
    AND c.context_id = j.name;

-- name: receipts_there
SELECT r.agent, r.tenant, r.owner, r.message_id
FROM unnest(%s::text[], %s::text[], %s::text[], %s::text[]) AS j (agent, tenant, owner, name)
JOIN {schema}.receipts r ON r.agent = j.agent AND r.tenant = j.tenant AND r.owner = j.owner
    AND r.message_id = j.name;

-- name: tasks_there
SELECT task_id FROM {schema}.tasks WHERE task_id = ANY(%s);

-- name: context_keys
SELECT nextval(pg_get_serial_sequence('{schema}.contexts', 'key')) FROM generate_series(1, %s);

-- name: add_contexts
COPY {schema}.contexts (key, agent, tenant, owner, context_id, said, touched_at) FROM STDIN;

-- name: add_messages
COPY {schema}.history (context, n, message) FROM STDIN;

-- name: add_values
COPY {schema}.context_values (context, name, value) FROM STDIN;

-- name: add_receipts
COPY {schema}.receipts (agent, tenant, owner, message_id, digest, task_id, turn, reply, at)
FROM STDIN;

-- name: add_tasks
COPY {schema}.tasks (
    key, task_id, agent, tenant, owner, context_id, state, status_at, seq, sub, turn, turn_open,
    waiting, cancel_requested, epoch, ended_at, place, wakes_at, base_url, holder,
    version) FROM STDIN;

-- name: events_there
SELECT e.agent, e.name FROM unnest(%s::text[], %s::text[]) AS j (agent, name)
JOIN {schema}.events e ON e.agent = j.agent AND e.name = j.name;

-- name: add_events
COPY {schema}.events (agent, name, at, value) FROM STDIN;

-- name: add_waits
COPY {schema}.event_waits (task, agent, name) FROM STDIN;

-- name: wake_for_events
-- Tasks that wait for an event which is complete here.
UPDATE {schema}.tasks t SET wakes_at = 0
WHERE t.key = ANY(%s) AND t.wakes_at IS NOT NULL AND EXISTS (
    SELECT 1 FROM {schema}.event_waits w
    JOIN {schema}.events e ON e.agent = w.agent AND e.name = w.name
    WHERE w.task = t.key);

-- name: count_tasks
INSERT INTO {schema}.task_counts (agent, tenant, owner, state, slot, n)
VALUES (%s, %s, %s, %s, 0, %s)
ON CONFLICT (agent, tenant, owner, state, slot) DO UPDATE SET n = task_counts.n + excluded.n;

-- name: add_records
COPY {schema}.log (task, seq, sub, turn, kind, at, payload) FROM STDIN;

-- name: add_pushes
COPY {schema}.pushes (
    task, id, agent, config, version, revision, cursor, state, note, options, confirmed, holder)
FROM STDIN;

-- name: add_task_messages
COPY {schema}.task_messages (task, n, body) FROM STDIN;

-- name: add_task_artifacts
COPY {schema}.task_artifacts (task, n, seq, head, parts) FROM STDIN;

-- name: set_stored
UPDATE {schema}.tasks t SET messages = f.messages, has_status_message = f.said, folded = f.seq
FROM unnest(%s::bigint[], %s::integer[], %s::boolean[], %s::integer[])
    AS f (key, messages, said, seq)
WHERE t.key = f.key;

-- name: replicas
SELECT id, seen_at,
    buried_at IS NULL AND seen_at + lives_for
        >= (extract(epoch FROM clock_timestamp()) * 1000)::bigint,
    (SELECT count(*) FROM {schema}.tasks t
    WHERE t.ended_at IS NULL
        AND (t.holder <> '' OR t.turn_open OR t.waiting > 0 OR t.cancel_requested)
        AND t.holder = r.id)
FROM {schema}.replicas r WHERE NOT freed ORDER BY seen_at DESC, id;

-- name: now
SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint;

-- name: size
SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class
WHERE relkind IN ('r', 'p') AND relnamespace = to_regnamespace(%s);

-- name: writer_number
SELECT nextval('{schema}.writers');

-- name: limit_lock_wait
SET LOCAL lock_timeout = '5s';

-- name: lock_owners
-- Blocks writers, and replicas that open the store, until the transaction ends.
LOCK TABLE {schema}.replicas, {schema}.tasks, {schema}.task_counts, {schema}.receipts,
    {schema}.contexts, {schema}.history, {schema}.context_values IN EXCLUSIVE MODE;

-- name: expire_replicas
-- Should an expired replica come back, it rejoins without its leases.
UPDATE {schema}.replicas SET
    buried_at = (extract(epoch FROM clock_timestamp()) * 1000)::bigint, freed = true,
    generation = nextval('{schema}.generations')
WHERE NOT freed;

-- name: free_tasks
UPDATE {schema}.tasks SET version = version + 1, epoch = epoch + 1, holder = '', place = 0
WHERE ended_at IS NULL AND (holder <> '' OR turn_open OR waiting > 0 OR cancel_requested)
    AND holder <> '' AND wakes_at IS NULL;

-- name: free_pushes
UPDATE {schema}.pushes SET holder = '' WHERE state = 'active' AND holder <> '';

-- name: resume
-- Resume webhooks, without lease owners: any replica may claim them.
UPDATE {schema}.pushes p SET state = 'active', note = '', holder = ''
FROM unnest(%s::bigint[], %s::text[]) AS w (task, id)
WHERE p.task = w.task AND p.id = w.id COLLATE "C" AND p.state = 'parked';
