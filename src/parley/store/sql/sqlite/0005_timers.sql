-- Sleeping tasks, the events that wake them, and secrets. The addresses that tasks began with.

-- When a sleeping task wakes up (ms); NULL while it is awake. A sleeping task has the holder '~',
-- so that nobody looks at it who looks for tasks to claim.
ALTER TABLE tasks ADD COLUMN wakes_at INTEGER;
CREATE INDEX tasks_asleep ON tasks (agent, wakes_at) WHERE wakes_at IS NOT NULL;

-- The agent's address as the sender of the task's first message sees it. It never changes.
ALTER TABLE tasks ADD COLUMN base_url TEXT NOT NULL DEFAULT '';

-- Events that are complete.
CREATE TABLE events (
    agent TEXT    NOT NULL,
    name  TEXT    NOT NULL,
    at    INTEGER NOT NULL,
    value BLOB    NOT NULL,
    PRIMARY KEY (agent, name)
);

CREATE INDEX events_kept ON events (agent, at);

-- The events that tasks wait for, or waited for when they slept last.
CREATE TABLE event_waits (
    agent TEXT    NOT NULL,
    name  TEXT    NOT NULL,
    task  INTEGER NOT NULL,
    PRIMARY KEY (agent, name, task)
) WITHOUT ROWID;

CREATE INDEX event_waits_of ON event_waits (task);

CREATE TABLE secrets (
    name  TEXT PRIMARY KEY,
    value BLOB NOT NULL
);
