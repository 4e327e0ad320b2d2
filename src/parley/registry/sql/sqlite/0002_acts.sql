-- What callers and operators did, as a chain of hashes: lines are only ever added. Times are in ms.
CREATE TABLE acts (
    seq INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    at INTEGER NOT NULL,
    kind TEXT NOT NULL,
    issuer TEXT NOT NULL,
    actor TEXT NOT NULL,
    client TEXT NOT NULL,
    address TEXT NOT NULL,
    agent TEXT NOT NULL,
    tenant TEXT NOT NULL,
    subject TEXT NOT NULL,
    outcome TEXT NOT NULL,
    details TEXT NOT NULL,
    previous TEXT NOT NULL,
    hash TEXT NOT NULL);

CREATE TRIGGER acts_in_order BEFORE INSERT ON acts
WHEN NEW.seq <= (SELECT max(seq) FROM acts)
BEGIN
    SELECT RAISE(ABORT, 'the audit is append-only');
END;

CREATE TRIGGER acts_unchanged BEFORE UPDATE ON acts
BEGIN
    SELECT RAISE(ABORT, 'the audit is append-only');
END;

CREATE TRIGGER acts_kept BEFORE DELETE ON acts
BEGIN
    SELECT RAISE(ABORT, 'the audit is append-only');
END;

-- The token that proved a claim, and when it is looked for again.
ALTER TABLE claims ADD COLUMN token TEXT NOT NULL DEFAULT '';
ALTER TABLE claims ADD COLUMN due_at INTEGER NOT NULL DEFAULT 0;
CREATE INDEX claims_by_due ON claims (due_at);
