-- oldest: 2
-- Sleeping tasks, the events that wake them, and secrets. The addresses that tasks began with.

-- When a sleeping task wakes up (ms); NULL while it is awake. A sleeping task has the holder '~',
-- so that nobody looks at it who looks for tasks to claim: replicas of the version before neither.
ALTER TABLE {schema}.tasks ADD COLUMN wakes_at bigint;
CREATE INDEX tasks_asleep ON {schema}.tasks (agent, wakes_at, key) WHERE wakes_at IS NOT NULL;

-- The agent's address as the sender of the task's first message sees it. It never changes.
ALTER TABLE {schema}.tasks ADD COLUMN base_url text NOT NULL DEFAULT '';

-- Events that are complete.
CREATE TABLE {schema}.events (
    at    bigint NOT NULL,
    agent text COLLATE "C" NOT NULL,
    name  text COLLATE "C" NOT NULL,
    value bytea  NOT NULL,
    PRIMARY KEY (agent, name)
);

CREATE INDEX events_kept ON {schema}.events (agent, at);

-- The events that tasks wait for, or waited for when they slept last.
CREATE TABLE {schema}.event_waits (
    task  bigint NOT NULL,
    agent text COLLATE "C" NOT NULL,
    name  text COLLATE "C" NOT NULL,
    PRIMARY KEY (agent, name, task)
);

CREATE INDEX event_waits_of ON {schema}.event_waits (task);

CREATE TABLE {schema}.secrets (
    name  text COLLATE "C" PRIMARY KEY,
    value bytea NOT NULL
);
