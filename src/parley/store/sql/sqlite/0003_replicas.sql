-- Who holds a task, where it stands in line, and lists that cost the same however many tasks.

ALTER TABLE tasks ADD COLUMN holder TEXT NOT NULL DEFAULT '';
ALTER TABLE tasks ADD COLUMN place INTEGER NOT NULL DEFAULT 0;

-- What is under way: held by somebody, or to be adopted in this order. Few of all tasks.
CREATE INDEX tasks_under_way ON tasks (holder, agent, place)
WHERE ended_at IS NULL AND (holder <> '' OR turn_open OR waiting OR cancel_requested);

-- What waits for its caller.
CREATE INDEX tasks_parked ON tasks (agent, status_at)
WHERE ended_at IS NULL AND NOT (turn_open OR waiting OR cancel_requested);

-- A list of all states is put together from the heads of the lists of each.
DROP INDEX tasks_listed;
CREATE INDEX tasks_listed ON tasks (agent, tenant, owner, state, status_at, task_id);

DROP INDEX tasks_ended;
CREATE INDEX tasks_ended ON tasks (agent, ended_at) WHERE ended_at IS NOT NULL;

-- How many tasks there are, so that nobody has to count them.
CREATE TABLE task_counts (
    agent  TEXT    NOT NULL,
    tenant TEXT    NOT NULL,
    owner  TEXT    NOT NULL,
    state  TEXT    NOT NULL,
    n      INTEGER NOT NULL,
    PRIMARY KEY (agent, tenant, owner, state)
) WITHOUT ROWID;

INSERT INTO task_counts
SELECT agent, tenant, owner, state, count(*) FROM tasks GROUP BY agent, tenant, owner, state;

ALTER TABLE pushes ADD COLUMN holder TEXT NOT NULL DEFAULT '';

DROP INDEX pushes_active;
CREATE INDEX pushes_active ON pushes (holder, task) WHERE state = 'active';
