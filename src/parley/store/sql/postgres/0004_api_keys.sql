-- oldest: 2
-- API keys, by their hashes. Times are in ms.
CREATE TABLE {schema}.api_keys (
    created_at bigint NOT NULL,
    expires_at bigint,
    revoked_at bigint,
    id         text COLLATE "C" PRIMARY KEY,
    digest     text NOT NULL,
    owner      text COLLATE "C" NOT NULL,
    label      text NOT NULL,
    scopes     text NOT NULL
);
