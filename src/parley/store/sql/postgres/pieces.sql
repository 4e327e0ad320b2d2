-- What several queries have in common. {schema} is the schema of the store.

-- piece: now
-- The database's clock, in ms.
(extract(epoch FROM clock_timestamp()) * 1000)::bigint

-- piece: writer
-- The writer's row, locked; none when the writer is fenced: its generation has passed.
me AS MATERIALIZED (
    SELECT 1 FROM {schema}.replicas
    WHERE id = %(replica)s AND generation = %(generation)s AND buried_at IS NULL FOR UPDATE)

-- piece: head
-- A task's head, in the order of ``head_from_row``, behind the version of its row.
version, key, task_id, agent, tenant, owner, context_id, state, status_at, seq, sub, turn,
    turn_open, waiting, cancel_requested, epoch, ended_at, holder, place, messages,
    has_status_message, folded, wakes_at, base_url

-- piece: active
-- A task t is claimed or has work left. The same words are the condition of an index.
t.ended_at IS NULL AND (t.holder <> '' OR t.turn_open OR t.waiting > 0 OR t.cancel_requested)
