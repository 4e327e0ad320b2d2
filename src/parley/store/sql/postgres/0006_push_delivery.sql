-- oldest: 2
-- What a webhook receives, whether its receiver confirmed it, and its last attempts: each attempt has
-- a slot, so that a webhook has as many rows as slots at most.
ALTER TABLE {schema}.pushes
    ADD COLUMN options text NOT NULL DEFAULT '',
    ADD COLUMN attempts bigint NOT NULL DEFAULT 0,
    ADD COLUMN confirmed boolean NOT NULL DEFAULT false;
CREATE INDEX pushes_noted ON {schema}.pushes (task) WHERE state = 'active' AND note <> '';
CREATE TABLE {schema}.push_attempts (
    task bigint NOT NULL,
    slot integer NOT NULL,
    push text COLLATE "C" NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (task, push, slot)
);
