-- A group of appends: one statement, put together by postgres/batch.py from the pieces that the
-- group needs. It moves the writer's row to the number of the group (``grp``). Everything depends
-- on that row being of the writer's generation; what belongs to a task depends on the task's head
-- having moved. {schema} is the schema of the store.

-- name: write
-- ``missed`` are the keys of the tasks that another writer changed, ``noted`` the cursors that
-- moved.
WITH {writer}, {steps}
UPDATE {schema}.replicas r SET grp = %(grp)s, missed = {missed}, noted = {noted}
FROM me WHERE r.id = %(replica)s
RETURNING r.missed, r.noted;

-- piece: missed_keys
ARRAY(
    SELECT key FROM unnest(%(keys)s) AS k (key)
    WHERE key NOT IN (SELECT key FROM done))

-- piece: moved_cursors
ARRAY(SELECT n FROM cursors)

-- piece: nothing
'{}'::bigint[]

-- The keys of the heads that moved.

-- piece: done_moved_created
done AS MATERIALIZED (SELECT key FROM moved UNION ALL SELECT key FROM created)

-- piece: done_moved
done AS MATERIALIZED (SELECT key FROM moved)

-- piece: done_created
done AS MATERIALIZED (SELECT key FROM created)

-- piece: done
done AS MATERIALIZED (SELECT 0::bigint AS key WHERE false)

-- piece: moved
-- The heads of tasks that the group appends to. A head moves only from the version that the writer
-- knows.
moved AS (
    UPDATE {schema}.tasks t SET
        version = t.version + 1, seq = m.seq, sub = m.sub, turn = m.turn, epoch = m.epoch,
        turn_open = m.turn_open, waiting = m.waiting, cancel_requested = m.cancel_requested,
        holder = m.holder, place = m.place, state = m.state, status_at = m.status_at,
        ended_at = m.ended_at, messages = m.messages, folded = m.folded,
        has_status_message = m.has_status_message, wakes_at = m.wakes_at
    FROM me, unnest(
        %(m_key)s, %(m_version)s, %(m_seq)s, %(m_sub)s, %(m_turn)s, %(m_epoch)s,
        %(m_turn_open)s, %(m_waiting)s, %(m_cancel_requested)s, %(m_holder)s, %(m_place)s,
        %(m_state)s, %(m_status_at)s, %(m_ended_at)s, %(m_messages)s, %(m_folded)s,
        %(m_has_status_message)s, %(m_wakes_at)s)
        AS m (key, version, seq, sub, turn, epoch, turn_open, waiting, cancel_requested, holder,
            place, state, status_at, ended_at, messages, folded, has_status_message, wakes_at)
    WHERE t.key = m.key AND t.version = m.version
    RETURNING t.key)

-- piece: created
-- The heads of new tasks.
created AS (
    INSERT INTO {schema}.tasks (
        key, version, task_id, agent, tenant, owner, context_id, seq, sub, turn, epoch, turn_open,
        waiting, cancel_requested, holder, place, state, status_at, ended_at, messages, folded,
        has_status_message, wakes_at, base_url)
    SELECT
        c.key, 1, c.task_id, c.agent, c.tenant, c.owner, c.context_id, c.seq, c.sub, c.turn,
        c.epoch, c.turn_open, c.waiting, c.cancel_requested, c.holder, c.place, c.state,
        c.status_at, c.ended_at, c.messages, c.folded, c.has_status_message, c.wakes_at,
        c.base_url
    FROM me, unnest(
        %(c_key)s, %(c_task_id)s, %(c_agent)s, %(c_tenant)s, %(c_owner)s, %(c_context_id)s,
        %(c_seq)s, %(c_sub)s, %(c_turn)s, %(c_epoch)s, %(c_turn_open)s, %(c_waiting)s,
        %(c_cancel_requested)s, %(c_holder)s, %(c_place)s, %(c_state)s, %(c_status_at)s,
        %(c_ended_at)s, %(c_messages)s, %(c_folded)s, %(c_has_status_message)s,
        %(c_wakes_at)s, %(c_base_url)s)
        AS c (key, task_id, agent, tenant, owner, context_id, seq, sub, turn, epoch, turn_open,
            waiting, cancel_requested, holder, place, state, status_at, ended_at, messages, folded,
            has_status_message, wakes_at, base_url)
    ON CONFLICT (task_id) DO NOTHING
    RETURNING key)

-- piece: records
records AS (
    INSERT INTO {schema}.log (task, seq, sub, turn, kind, at, payload)
    SELECT r.* FROM unnest(
        %(r_task)s, %(r_seq)s, %(r_sub)s, %(r_turn)s, %(r_kind)s, %(r_at)s, %(r_payload)s)
        AS r (task, seq, sub, turn, kind, at, payload)
    WHERE r.task IN (SELECT key FROM done))

-- piece: messages
-- The stored form of tasks: messages; 0 is the metadata.
messages AS (
    INSERT INTO {schema}.task_messages (task, n, body)
    SELECT s.* FROM unnest(%(s_task)s, %(s_n)s, %(s_body)s) AS s (task, n, body)
    WHERE s.task IN (SELECT key FROM done))

-- piece: replaced
-- The pieces of an artifact that end before its replacement.
replaced AS (
    DELETE FROM {schema}.task_artifacts a
    USING unnest(%(o_task)s, %(o_n)s, %(o_seq)s) AS o (task, n, seq)
    WHERE a.task = o.task AND a.n = o.n AND a.seq < o.seq
        AND o.task IN (SELECT key FROM done))

-- piece: artifacts
artifacts AS (
    INSERT INTO {schema}.task_artifacts (task, n, seq, head, parts)
    SELECT a.* FROM unnest(%(a_task)s, %(a_n)s, %(a_seq)s, %(a_head)s, %(a_parts)s)
        AS a (task, n, seq, head, parts)
    WHERE a.task IN (SELECT key FROM done)
    ON CONFLICT (task, n, seq) DO UPDATE SET head = excluded.head, parts = excluded.parts)

-- piece: counts
-- In order, so that two replicas never deadlock.
counts AS (
    INSERT INTO {schema}.task_counts (agent, tenant, owner, state, slot, n)
    SELECT agent, tenant, owner, state, %(slot)s, sum(n) FROM unnest(
        %(n_task)s, %(n_agent)s, %(n_tenant)s, %(n_owner)s, %(n_state)s, %(n_more)s)
        AS n (task, agent, tenant, owner, state, n)
    WHERE n.task IN (SELECT key FROM done)
    GROUP BY agent, tenant, owner, state HAVING sum(n) <> 0
    ORDER BY agent, tenant, owner, state
    ON CONFLICT (agent, tenant, owner, state, slot) DO UPDATE
    SET n = task_counts.n + excluded.n)

-- piece: receipts
receipts AS (
    INSERT INTO {schema}.receipts (
        agent, tenant, owner, message_id, digest, task_id, turn, reply, at)
    SELECT r.agent, r.tenant, r.owner, r.message_id, r.digest, r.task_id, r.turn, r.reply, %(at)s
    FROM me, unnest(
        %(k_task)s, %(k_agent)s, %(k_tenant)s, %(k_owner)s, %(k_message_id)s, %(k_digest)s,
        %(k_task_id)s, %(k_turn)s, %(k_reply)s)
        AS r (task, agent, tenant, owner, message_id, digest, task_id, turn, reply)
    WHERE r.task = 0 OR r.task IN (SELECT key FROM done)
    ORDER BY r.agent, r.tenant, r.owner, r.message_id)

-- piece: exchange
-- The history of contexts, which keeps the last {kept} messages.
said AS MATERIALIZED (
    SELECT e.*, row_number() OVER (
        PARTITION BY agent, tenant, owner, context_id ORDER BY ordinal) AS n
    FROM me, unnest(
        %(e_task)s, %(e_agent)s, %(e_tenant)s, %(e_owner)s, %(e_context_id)s, %(e_message)s)
        WITH ORDINALITY AS e (task, agent, tenant, owner, context_id, message, ordinal)
    WHERE e.task = 0 OR e.task IN (SELECT key FROM done)),
touched AS (
    INSERT INTO {schema}.contexts AS c (agent, tenant, owner, context_id, said, touched_at)
    SELECT agent, tenant, owner, context_id, count(*), %(at)s FROM said
    GROUP BY agent, tenant, owner, context_id ORDER BY agent, tenant, owner, context_id
    ON CONFLICT (agent, tenant, owner, context_id) DO UPDATE SET
        said = c.said + excluded.said, touched_at = greatest(c.touched_at, excluded.touched_at)
    RETURNING c.key, c.agent, c.tenant, c.owner, c.context_id, c.said),
history AS (
    INSERT INTO {schema}.history (context, n, message)
    SELECT touched.key, touched.said - total.n + said.n, said.message
    FROM said
    JOIN (SELECT agent, tenant, owner, context_id, max(n) AS n FROM said
        GROUP BY agent, tenant, owner, context_id) total
        USING (agent, tenant, owner, context_id)
    JOIN touched USING (agent, tenant, owner, context_id)),
trimmed AS (
    DELETE FROM {schema}.history h USING touched
    WHERE h.context = touched.key AND h.n <= touched.said - {kept})

-- piece: pushes
-- A replacement keeps the cursor.
pushes AS (
    INSERT INTO {schema}.pushes (
        task, id, agent, revision, config, version, cursor, state, note, holder, options,
        confirmed)
    SELECT p.* FROM unnest(
        %(p_task)s, %(p_id)s, %(p_agent)s, %(p_revision)s, %(p_config)s, %(p_version)s,
        %(p_cursor)s, %(p_state)s, %(p_note)s, %(p_holder)s, %(p_options)s, %(p_confirmed)s)
        AS p (
            task, id, agent, revision, config, version, cursor, state, note, holder, options,
            confirmed)
    WHERE p.task IN (SELECT key FROM done)
    ON CONFLICT (task, id) DO UPDATE SET
        revision = excluded.revision, config = excluded.config, version = excluded.version,
        state = excluded.state, note = excluded.note, holder = excluded.holder,
        options = excluded.options, confirmed = excluded.confirmed)

-- piece: waits
-- The events that tasks wait for, in the place of those that they waited for before. A row with no
-- name stands for a task that waits for none.
unwaited AS (
    DELETE FROM {schema}.event_waits w
    USING (SELECT DISTINCT task FROM unnest(%(v_task)s) AS v (task)) v
    WHERE w.task = v.task AND v.task IN (SELECT key FROM done) AND NOT EXISTS (
        SELECT 1 FROM unnest(%(v_task)s, %(v_name)s) AS n (task, name)
        WHERE n.task = w.task AND n.name = w.name)),
waits AS (
    INSERT INTO {schema}.event_waits (agent, name, task)
    SELECT v.agent, v.name, v.task
    FROM unnest(%(v_task)s, %(v_agent)s, %(v_name)s) AS v (task, agent, name)
    WHERE v.name <> '' AND v.task IN (SELECT key FROM done)
    ON CONFLICT DO NOTHING)

-- piece: cursors
-- The delivery cursors of webhooks, each if this replica holds it.
cursors AS (
    UPDATE {schema}.pushes p SET cursor = w.cursor, state = w.state, note = w.note,
        attempts = w.attempts, confirmed = w.confirmed
    FROM me, unnest(
        %(w_task_id)s, %(w_id)s, %(w_revision)s, %(w_cursor)s, %(w_state)s, %(w_note)s,
        %(w_attempts)s, %(w_confirmed)s, %(w_slot)s, %(w_body)s, %(w_n)s)
        AS w (
            task_id, id, revision, cursor, state, note, attempts, confirmed, slot, body, n)
    JOIN {schema}.tasks t ON t.task_id = w.task_id
    WHERE p.task = t.key AND p.id = w.id AND p.revision = w.revision AND p.holder = %(replica)s
    RETURNING w.n, p.task, p.id, w.slot, w.body),
attempted AS (
    INSERT INTO {schema}.push_attempts (task, push, slot, body)
    SELECT c.task, c.id, c.slot, c.body FROM cursors c WHERE c.slot >= 0
    ON CONFLICT (task, push, slot) DO UPDATE SET body = excluded.body)
