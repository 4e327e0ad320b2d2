-- Task logs, what agents keep for a context, and receipts of messages.

-- A task's head: one small row that every append rewrites. Nothing large may be added to it.
-- The key is the task's name within this file; moments are milliseconds since 1970.
CREATE TABLE tasks (
    key              INTEGER PRIMARY KEY,
    task_id          TEXT    NOT NULL UNIQUE,
    agent            TEXT    NOT NULL,
    tenant           TEXT    NOT NULL,
    owner            TEXT    NOT NULL,
    context_id       TEXT    NOT NULL,
    state            TEXT    NOT NULL,
    status_at        INTEGER NOT NULL,
    seq              INTEGER NOT NULL,
    sub              INTEGER NOT NULL,
    turn             INTEGER NOT NULL,
    turn_open        INTEGER NOT NULL,
    waiting          INTEGER NOT NULL,
    cancel_requested INTEGER NOT NULL,
    epoch            INTEGER NOT NULL,
    ended_at         INTEGER
);

-- In the order of a list; the state comes last so that counting needs nothing but the index.
CREATE INDEX tasks_listed ON tasks (agent, tenant, owner, status_at, task_id, state);
-- A context has few tasks, so they are sorted when asked for, and this changes with no status.
CREATE INDEX tasks_in_context ON tasks (context_id);
-- Tasks that have not ended come first, then the others by the moment when they did.
CREATE INDEX tasks_ended ON tasks (agent, ended_at);

-- The log itself. Public events have sub 0; private records follow the event that they hang on.
CREATE TABLE log (
    task    INTEGER NOT NULL,
    seq     INTEGER NOT NULL,
    sub     INTEGER NOT NULL,
    turn    INTEGER NOT NULL,
    kind    TEXT    NOT NULL,
    at      INTEGER NOT NULL,
    payload BLOB    NOT NULL,
    PRIMARY KEY (task, seq, sub)
) WITHOUT ROWID;

CREATE INDEX log_private ON log (task, seq, sub) WHERE sub > 0;

-- The fold of a task's log up to a place in it, without and with artifacts.
CREATE TABLE snapshots (
    task      INTEGER PRIMARY KEY,
    seq       INTEGER NOT NULL,
    sub       INTEGER NOT NULL,
    body      BLOB    NOT NULL,
    artifacts BLOB    NOT NULL
);

-- Contexts in which an agent keeps something. said counts the messages ever said in it.
CREATE TABLE contexts (
    key        INTEGER PRIMARY KEY,
    agent      TEXT    NOT NULL,
    tenant     TEXT    NOT NULL,
    owner      TEXT    NOT NULL,
    context_id TEXT    NOT NULL,
    said       INTEGER NOT NULL,
    touched_at INTEGER NOT NULL,
    UNIQUE (agent, tenant, owner, context_id)
);

CREATE INDEX contexts_touched ON contexts (agent, touched_at);

CREATE TABLE history (
    context INTEGER NOT NULL,
    n       INTEGER NOT NULL,
    message BLOB    NOT NULL,
    PRIMARY KEY (context, n)
) WITHOUT ROWID;

CREATE TABLE context_values (
    context INTEGER NOT NULL,
    name    TEXT    NOT NULL,
    value   BLOB    NOT NULL,
    PRIMARY KEY (context, name)
) WITHOUT ROWID;

-- Messages that their senders may repeat, and how they were answered.
CREATE TABLE receipts (
    agent      TEXT    NOT NULL,
    tenant     TEXT    NOT NULL,
    owner      TEXT    NOT NULL,
    message_id TEXT    NOT NULL,
    digest     BLOB    NOT NULL,
    task_id    TEXT    NOT NULL,
    turn       INTEGER NOT NULL,
    reply      BLOB    NOT NULL,
    at         INTEGER NOT NULL,
    PRIMARY KEY (agent, tenant, owner, message_id)
) WITHOUT ROWID;

CREATE INDEX receipts_kept ON receipts (agent, at);
