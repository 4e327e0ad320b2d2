-- The audit: what no task's log has, as a chain of hashes. Lines are never changed, and removed only
-- below audit_pruned. Times are in ms.
CREATE TABLE audit (
    seq      INTEGER PRIMARY KEY,
    id       TEXT    NOT NULL UNIQUE,
    at       INTEGER NOT NULL,
    kind     TEXT    NOT NULL,
    issuer   TEXT    NOT NULL,
    actor    TEXT    NOT NULL,
    client   TEXT    NOT NULL,
    address  TEXT    NOT NULL,
    agent    TEXT    NOT NULL,
    tenant   TEXT    NOT NULL,
    subject  TEXT    NOT NULL,
    outcome  TEXT    NOT NULL,
    details  TEXT    NOT NULL,
    previous TEXT    NOT NULL,
    hash     TEXT    NOT NULL
);

CREATE INDEX audit_at ON audit (at, seq);

CREATE TABLE audit_pruned (below INTEGER NOT NULL);
INSERT INTO audit_pruned (below) VALUES (0);

-- How far each destination was sent the audit, and which process sends it.
CREATE TABLE audit_cursors (
    destination TEXT PRIMARY KEY,
    seq         INTEGER NOT NULL,
    holder      TEXT    NOT NULL,
    until       INTEGER NOT NULL
);

CREATE TRIGGER audit_in_order BEFORE INSERT ON audit
WHEN NEW.seq <= (SELECT max(seq) FROM audit)
BEGIN
    SELECT RAISE(ABORT, 'the audit is append-only');
END;

CREATE TRIGGER audit_unchanged BEFORE UPDATE ON audit
BEGIN
    SELECT RAISE(ABORT, 'the audit is append-only');
END;

CREATE TRIGGER audit_kept BEFORE DELETE ON audit
WHEN OLD.seq >= (SELECT below FROM audit_pruned)
BEGIN
    SELECT RAISE(ABORT, 'the audit is append-only: parley audit prune removes what is old');
END;
