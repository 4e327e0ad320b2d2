-- Status and maintenance. {schema} is the schema of the store.

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
