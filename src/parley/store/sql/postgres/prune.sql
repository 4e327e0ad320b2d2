-- Removing old tasks, receipts and contexts, a piece at a time. {schema} is the schema of the
-- store.

-- name: lock_pruning
-- True if this replica may remove a piece now. The lock ends with the transaction.
SELECT pg_try_advisory_xact_lock(%s);

-- name: prune
-- Remove up to ``limit`` tasks that ended before a time, and about ``records`` records.
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
attempts AS (DELETE FROM {schema}.push_attempts a USING gone WHERE a.task = gone.key),
waits AS (DELETE FROM {schema}.event_waits w USING gone WHERE w.task = gone.key),
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

-- name: prune_events
-- Remove old events that no task waits for.
WITH gone AS (
    DELETE FROM {schema}.events WHERE (agent, name) IN (
        SELECT agent, name FROM {schema}.events e
        WHERE agent = %(agent)s AND at < %(before)s AND NOT EXISTS (
            SELECT 1 FROM {schema}.event_waits w WHERE w.agent = e.agent AND w.name = e.name)
        ORDER BY at LIMIT %(limit)s)
    RETURNING 1)
SELECT count(*) FROM gone;

-- name: prune_contexts
-- Remove contexts without tasks that were last used before a time.
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
