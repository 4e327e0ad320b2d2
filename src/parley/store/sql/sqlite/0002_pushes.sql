-- Push notification configurations, and how far their webhooks were told.

CREATE TABLE pushes (
    task     INTEGER NOT NULL,
    id       TEXT    NOT NULL,
    revision TEXT    NOT NULL,
    config   BLOB    NOT NULL,
    version  TEXT    NOT NULL,
    cursor   INTEGER NOT NULL,
    state    TEXT    NOT NULL,
    note     TEXT    NOT NULL,
    PRIMARY KEY (task, id)
) WITHOUT ROWID;

-- What a process that starts goes on with; few of all that were ever made.
CREATE INDEX pushes_active ON pushes (task) WHERE state = 'active';
