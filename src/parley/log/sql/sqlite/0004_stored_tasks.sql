-- Tasks as pieces of the wire's JSON, in the place of snapshots; webhooks by agent. What was kept
-- before is put into this form by log/sqlite_fill.py, within the same transaction.

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
) WITHOUT ROWID;

-- The artifacts of a task, in order, from 0, each in pieces that end with an event. The head is the
-- artifact without its parts, the last that is not empty counts; the parts are separated by commas.
CREATE TABLE task_artifacts (
    task  INTEGER NOT NULL,
    n     INTEGER NOT NULL,
    seq   INTEGER NOT NULL,
    head  BLOB    NOT NULL,
    parts BLOB    NOT NULL,
    PRIMARY KEY (task, n, seq)
) WITHOUT ROWID;

-- Private records, each kind by itself.
DROP INDEX log_private;
CREATE INDEX log_of_kind ON log (task, kind, seq, sub) WHERE sub > 0;

-- Which agent's task a webhook is of, so that other agents' are not looked at.
ALTER TABLE pushes ADD COLUMN agent TEXT NOT NULL DEFAULT '';
UPDATE pushes SET agent = (SELECT t.agent FROM tasks t WHERE t.key = pushes.task);

DROP INDEX pushes_active;
CREATE INDEX pushes_free ON pushes (agent, task) WHERE state = 'active' AND holder = '';
CREATE INDEX pushes_held ON pushes (holder, task) WHERE state = 'active' AND holder <> '';
CREATE INDEX pushes_parked ON pushes (agent, task) WHERE state = 'parked';
