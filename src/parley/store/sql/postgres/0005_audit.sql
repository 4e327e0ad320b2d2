-- oldest: 2
-- The audit: what no task's log has, as a chain of hashes. Lines are never changed, and removed only
-- below audit_pruned. Times are in ms.
CREATE TABLE {schema}.audit (
    seq      bigint PRIMARY KEY,
    at       bigint NOT NULL,
    id       text COLLATE "C" NOT NULL UNIQUE,
    kind     text COLLATE "C" NOT NULL,
    issuer   text COLLATE "C" NOT NULL,
    actor    text COLLATE "C" NOT NULL,
    client   text NOT NULL,
    address  text NOT NULL,
    agent    text COLLATE "C" NOT NULL,
    tenant   text COLLATE "C" NOT NULL,
    subject  text COLLATE "C" NOT NULL,
    outcome  text NOT NULL,
    details  text NOT NULL,
    previous text NOT NULL,
    hash     text NOT NULL
);

CREATE INDEX audit_at ON {schema}.audit (at, seq);

CREATE TABLE {schema}.audit_pruned (below bigint NOT NULL);
INSERT INTO {schema}.audit_pruned (below) VALUES (0);

-- How far each destination was sent the audit, and which process sends it.
CREATE TABLE {schema}.audit_cursors (
    destination text COLLATE "C" PRIMARY KEY,
    seq         bigint NOT NULL,
    holder      text   NOT NULL,
    until       bigint NOT NULL
);

CREATE FUNCTION {schema}.refuse_audit_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        IF OLD.seq < (SELECT below FROM {schema}.audit_pruned) THEN
            RETURN OLD;
        END IF;
    END IF;
    RAISE EXCEPTION 'the audit is append-only: parley audit prune removes what is old';
END
$$;

CREATE TRIGGER audit_unchanged BEFORE UPDATE OR DELETE ON {schema}.audit
FOR EACH ROW EXECUTE FUNCTION {schema}.refuse_audit_change();

CREATE TRIGGER audit_kept BEFORE TRUNCATE ON {schema}.audit
FOR EACH STATEMENT EXECUTE FUNCTION {schema}.refuse_audit_change();
