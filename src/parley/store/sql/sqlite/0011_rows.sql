-- Small tables: rows of bytes by a text, each in the table with its name. Times are in ms.
-- store/sqlite/file.py puts secrets, API keys, usage and amounts of limits there, and drops
-- their own tables, within the same transaction.
CREATE TABLE rows (
    name       TEXT NOT NULL,
    key        TEXT NOT NULL,
    value      BLOB NOT NULL,
    expires_at INTEGER,
    PRIMARY KEY (name, key)
) WITHOUT ROWID;

CREATE INDEX rows_by_expiry ON rows (expires_at) WHERE expires_at IS NOT NULL;

-- Where the audit had been sent: log shippers know that themselves.
DROP TABLE audit_cursors;
