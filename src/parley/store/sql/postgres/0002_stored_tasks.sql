-- oldest: 2
-- Tasks as pieces of the wire's JSON, in the place of snapshots; webhooks by agent. What was kept
-- before is put into this form by store/postgres/backfill.py, within the same transaction.

-- Replicas of the version before can neither write nor read tasks from here on: what they wrote
-- would lack its stored form. They say that the store is unavailable until they are replaced.
LOCK TABLE {schema}.replicas, {schema}.tasks, {schema}.log, {schema}.snapshots, {schema}.pushes;
ALTER TABLE {schema}.replicas RENAME COLUMN told TO noted;

-- How many messages a task's stored form has, whether the last of them is still that of the status,
-- and the number of the event up to which the stored form has the artifacts.
ALTER TABLE {schema}.tasks
    ADD COLUMN messages integer NOT NULL DEFAULT 0,
    ADD COLUMN folded integer NOT NULL DEFAULT 0,
    ADD COLUMN has_status_message boolean NOT NULL DEFAULT false;

-- What was said in a task, in order, from 1; 0 is the task's own metadata. Nothing is changed here.
CREATE TABLE {schema}.task_messages (
    task bigint  NOT NULL,
    n    integer NOT NULL,
    body bytea   NOT NULL,
    PRIMARY KEY (task, n)
);

-- The artifacts of a task, in order, from 0, each in pieces that end with an event. The head is the
-- artifact without its parts, the last that is not empty counts; the parts are separated by commas.
CREATE TABLE {schema}.task_artifacts (
    task  bigint  NOT NULL,
    n     integer NOT NULL,
    seq   integer NOT NULL,
    head  bytea   NOT NULL,
    parts bytea   NOT NULL,
    PRIMARY KEY (task, n, seq)
);

-- Private records, each kind by itself.
DROP INDEX {schema}.log_private;
CREATE INDEX log_of_kind ON {schema}.log (task, kind, seq, sub) WHERE sub > 0;

-- Which agent's task a webhook is of, so that other agents' are not looked at.
ALTER TABLE {schema}.pushes ADD COLUMN agent text COLLATE "C" NOT NULL DEFAULT '';
UPDATE {schema}.pushes p SET agent = t.agent FROM {schema}.tasks t WHERE t.key = p.task;

DROP INDEX {schema}.pushes_active;
CREATE INDEX pushes_free ON {schema}.pushes (agent, task) WHERE state = 'active' AND holder = '';
CREATE INDEX pushes_held ON {schema}.pushes (holder, task) WHERE state = 'active' AND holder <> '';
CREATE INDEX pushes_parked ON {schema}.pushes (agent, task) WHERE state = 'parked';
