-- What a webhook receives, whether its receiver confirmed it, and its last attempts: each attempt has
-- a slot, so that a webhook has as many rows as slots at most.
ALTER TABLE pushes ADD COLUMN options TEXT NOT NULL DEFAULT '';
ALTER TABLE pushes ADD COLUMN attempts INTEGER NOT NULL DEFAULT 0;
ALTER TABLE pushes ADD COLUMN confirmed INTEGER NOT NULL DEFAULT 0;
CREATE INDEX pushes_noted ON pushes (task) WHERE state = 'active' AND note <> '';
CREATE TABLE push_attempts (
    task INTEGER NOT NULL,
    push TEXT    NOT NULL,
    slot INTEGER NOT NULL,
    body BLOB    NOT NULL,
    PRIMARY KEY (task, push, slot)
) WITHOUT ROWID;
