-- What a migration asks and writes besides its own file. {schema} is the schema of the tables.

-- name: server
SELECT current_setting('server_version_num')::int,
    (SELECT pg_encoding_to_char(encoding) FROM pg_database WHERE datname = current_database());

-- name: has_versions
SELECT to_regclass('{schema}.schema_versions') IS NOT NULL;

-- name: versions
SELECT version, name, oldest FROM {schema}.schema_versions;

-- name: lock_migrations
SELECT pg_advisory_xact_lock(%s);

-- name: has_schema
SELECT to_regnamespace('{schema}') IS NOT NULL;

-- name: create_schema
CREATE SCHEMA {schema};

-- name: create_versions
CREATE TABLE IF NOT EXISTS {schema}.schema_versions (
    version integer PRIMARY KEY, name text NOT NULL, oldest integer NOT NULL,
    applied_at timestamptz NOT NULL);

-- name: add_version
INSERT INTO {schema}.schema_versions VALUES (%s, %s, %s, now());
