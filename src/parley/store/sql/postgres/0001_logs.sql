-- oldest: 1
-- Task logs, what agents keep for a context, receipts, webhooks, and the replicas that use them.
-- Moments are milliseconds since 1970. {schema} is the schema in which all of it lies.

-- A process that uses the store. Its writer's groups of appends are numbered: a group is written
-- in the same transaction that moves grp, and only while the writer's generation is the row's.
-- missed and told are what was found out when that group was written.
CREATE TABLE {schema}.replicas (
    id         text COLLATE "C" PRIMARY KEY,
    seen_at    bigint  NOT NULL,
    lives_for  bigint  NOT NULL,
    buried_at  bigint,
    freed      boolean NOT NULL DEFAULT false,
    generation bigint  NOT NULL,
    grp        bigint  NOT NULL DEFAULT 0,
    missed     bigint[] NOT NULL DEFAULT '{}',
    told       bigint[] NOT NULL DEFAULT '{}'
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

CREATE SEQUENCE {schema}.generations;
CREATE SEQUENCE {schema}.writers;

-- A task's head: one small row that every append rewrites. Nothing large may be added to it.
-- The key tells the moment of creation, so that keys are in the order of age. version moves with
-- every change: a writer changes a head only from the version that it knows. A page is left part
-- empty, so that an append, which changes nothing that is in an index, stays on it (HOT).
CREATE TABLE {schema}.tasks (
    key              bigint  PRIMARY KEY,
    version          bigint  NOT NULL,
    status_at        bigint  NOT NULL,
    ended_at         bigint,
    place            bigint  NOT NULL,
    seq              integer NOT NULL,
    sub              integer NOT NULL,
    turn             integer NOT NULL,
    waiting          integer NOT NULL,
    epoch            integer NOT NULL,
    turn_open        boolean NOT NULL,
    cancel_requested boolean NOT NULL,
    task_id          text COLLATE "C" NOT NULL UNIQUE,
    agent            text COLLATE "C" NOT NULL,
    tenant           text COLLATE "C" NOT NULL,
    owner            text COLLATE "C" NOT NULL,
    context_id       text COLLATE "C" NOT NULL,
    state            text COLLATE "C" NOT NULL,
    holder           text COLLATE "C" NOT NULL
) WITH (fillfactor = 75, autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.05);

-- A list of all states is put together from the heads of the lists of each.
CREATE INDEX tasks_listed ON {schema}.tasks (agent, tenant, owner, state, status_at, task_id);
CREATE INDEX tasks_in_context ON {schema}.tasks (context_id);
CREATE INDEX tasks_ended ON {schema}.tasks (agent, ended_at) WHERE ended_at IS NOT NULL;
-- What is under way: held by somebody, or to be adopted in this order. Few of all tasks.
CREATE INDEX tasks_under_way ON {schema}.tasks (holder, agent, place, key)
WHERE ended_at IS NULL AND (holder <> '' OR turn_open OR waiting > 0 OR cancel_requested);
-- What waits for its caller.
CREATE INDEX tasks_parked ON {schema}.tasks (agent, status_at)
WHERE ended_at IS NULL AND NOT (turn_open OR waiting > 0 OR cancel_requested);

-- How many tasks there are, so that nobody has to count them. Each replica counts in a slot that
-- it shares with few others, so that they do not wait for one another; the sum is the number.
CREATE TABLE {schema}.task_counts (
    agent  text COLLATE "C" NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    owner  text COLLATE "C" NOT NULL,
    state  text COLLATE "C" NOT NULL,
    slot   integer NOT NULL,
    n      bigint  NOT NULL,
    PRIMARY KEY (agent, tenant, owner, state, slot)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);

-- The log itself. Public events have sub 0; private records follow the event that they hang on.
CREATE TABLE {schema}.log (
    task    bigint  NOT NULL,
    at      bigint  NOT NULL,
    seq     integer NOT NULL,
    sub     integer NOT NULL,
    turn    integer NOT NULL,
    kind    text COLLATE "C" NOT NULL,
    payload bytea   NOT NULL,
    PRIMARY KEY (task, seq, sub)
);

CREATE INDEX log_private ON {schema}.log (task, seq, sub) WHERE sub > 0;

-- The fold of a task's log up to a place in it, without and with artifacts.
CREATE TABLE {schema}.snapshots (
    task      bigint  PRIMARY KEY,
    seq       integer NOT NULL,
    sub       integer NOT NULL,
    body      bytea   NOT NULL,
    artifacts bytea   NOT NULL
) WITH (fillfactor = 80);

-- Contexts in which an agent keeps something. said counts the messages ever said in it.
CREATE TABLE {schema}.contexts (
    key        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    said       bigint NOT NULL,
    touched_at bigint NOT NULL,
    agent      text COLLATE "C" NOT NULL,
    tenant     text COLLATE "C" NOT NULL,
    owner      text COLLATE "C" NOT NULL,
    context_id text COLLATE "C" NOT NULL,
    UNIQUE (agent, tenant, owner, context_id)
) WITH (fillfactor = 80);

CREATE INDEX contexts_touched ON {schema}.contexts (agent, touched_at);

CREATE TABLE {schema}.history (
    context bigint NOT NULL,
    n       bigint NOT NULL,
    message bytea  NOT NULL,
    PRIMARY KEY (context, n)
);

CREATE TABLE {schema}.context_values (
    context bigint NOT NULL,
    name    text COLLATE "C" NOT NULL,
    value   bytea  NOT NULL,
    PRIMARY KEY (context, name)
);

-- Messages that their senders may repeat, and how they were answered.
CREATE TABLE {schema}.receipts (
    at         bigint  NOT NULL,
    turn       integer NOT NULL,
    agent      text COLLATE "C" NOT NULL,
    tenant     text COLLATE "C" NOT NULL,
    owner      text COLLATE "C" NOT NULL,
    message_id text COLLATE "C" NOT NULL,
    task_id    text COLLATE "C" NOT NULL,
    digest     bytea   NOT NULL,
    reply      bytea   NOT NULL,
    PRIMARY KEY (agent, tenant, owner, message_id)
);

CREATE INDEX receipts_kept ON {schema}.receipts (agent, at);

-- Push notification configurations, how far their webhooks were told, and who tells them.
CREATE TABLE {schema}.pushes (
    task     bigint NOT NULL,
    cursor   bigint NOT NULL,
    id       text COLLATE "C" NOT NULL,
    revision text COLLATE "C" NOT NULL,
    version  text COLLATE "C" NOT NULL,
    state    text COLLATE "C" NOT NULL,
    holder   text COLLATE "C" NOT NULL,
    note     text   NOT NULL,
    config   bytea  NOT NULL,
    PRIMARY KEY (task, id)
) WITH (fillfactor = 75);

CREATE INDEX pushes_active ON {schema}.pushes (holder, task) WHERE state = 'active';
