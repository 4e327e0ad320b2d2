-- oldest: 9
-- Small tables: rows of bytes by a text, each in the table with its name. Times are in ms.
-- store/postgres/schema.py puts secrets, API keys, usage and amounts of limits there, and
-- drops their own tables, within the same transaction.
LOCK TABLE {schema}.secrets, {schema}.api_keys, {schema}.usage, {schema}.quota_slots,
    {schema}.audit_cursors;

CREATE TABLE {schema}.rows (
    expires_at bigint,
    name       text COLLATE "C" NOT NULL,
    key        text COLLATE "C" NOT NULL,
    value      bytea NOT NULL,
    PRIMARY KEY (name, key)
);

CREATE INDEX rows_by_expiry ON {schema}.rows (expires_at) WHERE expires_at IS NOT NULL;

-- Where the audit had been sent: log shippers know that themselves.
DROP TABLE {schema}.audit_cursors;
