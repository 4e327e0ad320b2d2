-- Tasks as pieces of the wire's JSON, in the place of snapshots; webhooks by agent. What was kept
-- before is put into this form by store/sqlite/backfill.py, within the same transaction.

-- How many messages a task's stored form has, whether the last of them is still that of the status,
-- and the number of the event up to which the stored form has the artifacts.
ALTER TABLE tasks ADD COLUMN messages INTEGER NOT NULL DEFAULT 0;
ALTER TABLE tasks ADD COLUMN has_status_message INTEGER NOT NULL DEFAULT 0;
ALTER TABLE tasks ADD COLUMN folded INTEGER NOT NULL DEFAULT 0;

-- What was said in a task, in order, from 1; 0 is the task's own metadata. Nothing is changed here.
CREATE TABLE task_messages (
    task INTEGER NOT NULL,
    n    INTEGER NOT NULL,
    body BLOB    NOT NULL,
    PRIMARY KEY (task, n)
);

-- The artifacts of a task, in order, from 0, each in pieces that end with an event. The head is the
-- artifact without its parts, the last that is not empty counts; the parts are separated by commas.
CREATE TABLE task_artifacts (
    task  INTEGER NOT NULL,
    n     INTEGER NOT NULL,
    seq   INTEGER NOT NULL,
    head  BLOB    NOT NULL,
    parts BLOB    NOT NULL,
    PRIMARY KEY (task, n, seq)
);

-- What may hold large values again, its rows in no other order than that in which they came. Where
-- rows are in the order of a key, whoever looks for one reads those on the way whole, megabytes among
-- them; now only the index of the key is read.
DROP INDEX log_private;
ALTER TABLE log RENAME TO log_before;
CREATE TABLE log (
    task    INTEGER NOT NULL,
    seq     INTEGER NOT NULL,
    sub     INTEGER NOT NULL,
    turn    INTEGER NOT NULL,
    kind    TEXT    NOT NULL,
    at      INTEGER NOT NULL,
    payload BLOB    NOT NULL,
    PRIMARY KEY (task, seq, sub)
);
INSERT INTO log SELECT task, seq, sub, turn, kind, at, payload FROM log_before
ORDER BY task, seq, sub;
DROP TABLE log_before;

ALTER TABLE history RENAME TO history_before;
CREATE TABLE history (
    context INTEGER NOT NULL,
    n       INTEGER NOT NULL,
    message BLOB    NOT NULL,
    PRIMARY KEY (context, n)
);
INSERT INTO history SELECT context, n, message FROM history_before ORDER BY context, n;
DROP TABLE history_before;

ALTER TABLE context_values RENAME TO context_values_before;
CREATE TABLE context_values (
    context INTEGER NOT NULL,
    name    TEXT    NOT NULL,
    value   BLOB    NOT NULL,
    PRIMARY KEY (context, name)
);
INSERT INTO context_values SELECT context, name, value FROM context_values_before;
DROP TABLE context_values_before;

DROP INDEX receipts_kept;
ALTER TABLE receipts RENAME TO receipts_before;
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
);
INSERT INTO receipts
SELECT agent, tenant, owner, message_id, digest, task_id, turn, reply, at FROM receipts_before;
DROP TABLE receipts_before;
CREATE INDEX receipts_kept ON receipts (agent, at);

-- Private records, each kind by itself.
CREATE INDEX log_of_kind ON log (task, kind, seq, sub) WHERE sub > 0;

-- Which agent's task a webhook is of, so that other agents' are not looked at.
ALTER TABLE pushes ADD COLUMN agent TEXT NOT NULL DEFAULT '';
UPDATE pushes SET agent = (SELECT t.agent FROM tasks t WHERE t.key = pushes.task);

DROP INDEX pushes_active;
CREATE INDEX pushes_free ON pushes (agent, task) WHERE state = 'active' AND holder = '';
CREATE INDEX pushes_held ON pushes (holder, task) WHERE state = 'active' AND holder <> '';
CREATE INDEX pushes_parked ON pushes (agent, task) WHERE state = 'parked';
