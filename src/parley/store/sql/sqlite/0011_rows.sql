-- Small tables: rows of bytes by a text, each in the table with its name. Times are in ms.
-- store/sqlite/file.py puts secrets, API keys, usage, amounts of limits and cursors there, and drops
-- their own tables, within the same transaction.
CREATE TABLE rows (
    name       TEXT NOT NULL,
    key        TEXT NOT NULL,
    value      BLOB NOT NULL,
    expires_at INTEGER,
    PRIMARY KEY (name, key)
) WITHOUT ROWID;

CREATE INDEX rows_by_expiry ON rows (expires_at) WHERE expires_at IS NOT NULL;
