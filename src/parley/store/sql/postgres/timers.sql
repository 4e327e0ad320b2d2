-- Sleeping tasks and events. {schema} is the schema of the store.

-- name: next_wake
-- The first time at which a task of these agents is due.
SELECT min((
    SELECT t.wakes_at FROM {schema}.tasks t
    WHERE t.agent = a.agent AND t.wakes_at IS NOT NULL
    ORDER BY t.wakes_at LIMIT 1))
FROM unnest(%s::text[]) AS a (agent);

-- name: due_tasks
-- An agent's sleeping tasks that are due.
SELECT task_id, agent, tenant, owner FROM {schema}.tasks
WHERE agent = %s AND wakes_at IS NOT NULL AND wakes_at <= %s
ORDER BY wakes_at, key LIMIT %s;

-- name: wake
-- Wake sleeping tasks that are due, each with its queue key. Those that another replica is waking
-- are skipped.
WITH found AS MATERIALIZED (
    SELECT t.key, w.place FROM unnest(%(task_ids)s, %(places)s) AS w (task_id, place)
    JOIN {schema}.tasks t ON t.task_id = w.task_id
    WHERE t.wakes_at IS NOT NULL AND t.wakes_at <= %(now)s
    ORDER BY t.key FOR NO KEY UPDATE OF t SKIP LOCKED),
woken AS (
    UPDATE {schema}.tasks t
    SET version = t.version + 1, holder = '', place = found.place, wakes_at = NULL
    FROM found WHERE t.key = found.key
    RETURNING 1)
SELECT count(*) FROM woken;

-- name: lock_events
-- Until the transaction ends nobody completes these events, and no task begins to wait for one. The
-- statement after this one sees all that others did before.
SELECT pg_advisory_xact_lock(hashtextextended('parley event {schema} ' || %s || ' ' || name, 0))
FROM (SELECT name FROM unnest(%s::text[]) AS n (name) ORDER BY name) names;

-- name: complete_events
-- True if one of these events is complete.
SELECT EXISTS (SELECT 1 FROM {schema}.events WHERE agent = %s AND name = ANY(%s));

-- name: event
SELECT value FROM {schema}.events WHERE agent = %s AND name = %s;

-- piece: completed
-- Complete an event, and make the tasks that wait for it due. ``me`` allows it.
found AS MATERIALIZED (
    SELECT value FROM {schema}.events WHERE agent = %(agent)s AND name = %(name)s),
added AS (
    INSERT INTO {schema}.events (agent, name, at, value)
    SELECT %(agent)s, %(name)s, %(at)s::bigint, %(value)s::bytea FROM me
    WHERE NOT EXISTS (SELECT 1 FROM found)
    RETURNING 1),
woken AS (
    UPDATE {schema}.tasks t SET version = t.version + 1, wakes_at = 0
    FROM {schema}.event_waits w, added
    WHERE w.agent = %(agent)s AND w.name = %(name)s AND t.key = w.task AND t.wakes_at IS NOT NULL)

-- name: complete_event
-- The writer's row keeps the result, in case the answer is lost.
WITH {writer}, {completed},
noted AS (
    UPDATE {schema}.replicas r
    SET grp = %(grp)s, missed = '{}', noted = ARRAY(SELECT 1::bigint FROM added)
    FROM me WHERE r.id = %(replica)s)
SELECT (SELECT value FROM found) FROM me;

-- name: complete_event_outside
-- The same by a process that is no replica.
WITH me AS (SELECT 1), {completed}
SELECT (SELECT value FROM found);
