-- API keys, by their hashes. Times are in ms.
CREATE TABLE api_keys (
    id         TEXT PRIMARY KEY,
    digest     TEXT    NOT NULL,
    owner      TEXT    NOT NULL,
    label      TEXT    NOT NULL,
    scopes     TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER,
    revoked_at INTEGER
);
