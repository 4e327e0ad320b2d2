-- Leases: replicas, their heartbeats, and the expiry of those that are silent. A replica's row is
-- also its writer's: ``generation`` is the writer's fencing token, ``grp`` the number of its last
-- group.

-- name: replicas
SELECT r.id, r.seen_at, r.buried_at IS NULL AND r.seen_at + r.lives_for >= {now},
    (SELECT count(*) FROM {schema}.tasks t WHERE {active} AND t.holder = r.id)
FROM {schema}.replicas r WHERE NOT r.freed ORDER BY r.id;

-- name: register
INSERT INTO {schema}.replicas (id, seen_at, lives_for, generation)
VALUES (%(replica)s, {now}, %(lives_for)s, nextval('{schema}.generations'))
ON CONFLICT (id) DO NOTHING;

-- name: start_generation
-- Fence the groups that the writer sent before: none can commit any more. Return the number of the
-- last one that committed, with its results.
UPDATE {schema}.replicas SET
    generation = nextval('{schema}.generations'), buried_at = NULL, freed = false, seen_at = {now}
WHERE id = %s
RETURNING generation, grp, missed, noted;

-- name: writer_number
SELECT nextval('{schema}.writers');

-- name: beat
UPDATE {schema}.replicas SET seen_at = {now} WHERE id = %s
RETURNING seen_at, buried_at IS NOT NULL;

-- name: now
SELECT {now};

-- name: rejoin
-- An expired replica is back. Its writer finds by itself that it is fenced.
UPDATE {schema}.replicas SET
    buried_at = NULL, freed = false, generation = nextval('{schema}.generations'), seen_at = {now}
WHERE id = %s AND buried_at IS NOT NULL;

-- name: expire
-- Expire the replicas that were silent for longer than they live, and fence their writers. A last
-- heartbeat in the future was taken by another clock (it was set back, or another server took
-- over): it counts as now.
WITH ahead AS (
    UPDATE {schema}.replicas SET seen_at = {now}
    WHERE id IN (
        SELECT id FROM {schema}.replicas
        WHERE buried_at IS NULL AND seen_at > {now} + 1000
        ORDER BY id FOR UPDATE SKIP LOCKED))
UPDATE {schema}.replicas SET
    buried_at = {now}, freed = false, generation = nextval('{schema}.generations')
WHERE id IN (
    SELECT id FROM {schema}.replicas
    WHERE buried_at IS NULL AND seen_at + lives_for < {now}
    ORDER BY id FOR UPDATE SKIP LOCKED)
RETURNING id;

-- name: release_expired
-- Release the leases of expired replicas, one replica at a time. It is a statement of its own, so
-- that it sees all that they wrote before ``expire`` fenced them.
WITH gate AS MATERIALIZED (SELECT pg_try_advisory_xact_lock(%(lock)s) AS is_open),
dead AS MATERIALIZED (
    SELECT id FROM {schema}.replicas, gate
    WHERE gate.is_open AND buried_at IS NOT NULL AND NOT freed FOR UPDATE OF replicas),
tasks AS (
    UPDATE {schema}.tasks t
    SET version = t.version + 1, epoch = t.epoch + 1, holder = '', place = 0
    FROM dead WHERE {active} AND t.holder = dead.id
    RETURNING t.agent),
pushes AS (
    UPDATE {schema}.pushes p SET holder = '' FROM dead
    WHERE p.state = 'active' AND p.holder <> '' AND p.holder = dead.id),
done AS (
    UPDATE {schema}.replicas r SET freed = true FROM dead
    WHERE r.id = dead.id RETURNING r.id)
SELECT (SELECT count(*) FROM done), (SELECT count(*) FROM tasks);

-- name: delete_expired
-- Delete the replicas that expired a day ago.
DELETE FROM {schema}.replicas WHERE freed AND buried_at < {now} - 86400000;

-- name: leave
-- Expire a replica that closes, at once.
UPDATE {schema}.replicas SET
    buried_at = {now}, freed = false, generation = nextval('{schema}.generations')
WHERE id = %s;

-- name: release_tasks
UPDATE {schema}.tasks t SET version = version + 1, epoch = epoch + 1, holder = '', place = 0
WHERE {active} AND holder = %s AND holder <> '';

-- name: release_pushes
UPDATE {schema}.pushes SET holder = '' WHERE state = 'active' AND holder = %s AND holder <> '';

-- name: delete_replica
DELETE FROM {schema}.replicas WHERE id = %s;
