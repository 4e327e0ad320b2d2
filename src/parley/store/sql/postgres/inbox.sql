-- The inbox of a receiver of notifications: two tables in a schema of its own, or in that of a
-- store. Times are of the server, so that replicas need not agree on theirs.

-- name: lock_schema
-- Replicas that start together create the tables one after the other.
SELECT pg_advisory_xact_lock(hashtext('parley inbox'));

-- name: create_schema
CREATE SCHEMA IF NOT EXISTS {schema};

-- name: create_handled
CREATE TABLE IF NOT EXISTS {schema}.inbox_handled (
    id text COLLATE "C" PRIMARY KEY, expires_at timestamptz NOT NULL
);

-- name: create_expiry
CREATE INDEX IF NOT EXISTS inbox_handled_by_expiry ON {schema}.inbox_handled (expires_at);

-- name: create_lanes
CREATE TABLE IF NOT EXISTS {schema}.inbox_lanes (
    lane text COLLATE "C" PRIMARY KEY, holder text NOT NULL, expires_at timestamptz NOT NULL
);

-- name: is_handled
SELECT 1 FROM {schema}.inbox_handled WHERE id = %s AND expires_at > clock_timestamp();

-- name: take_lane
-- Changes no row if another holds the lane.
INSERT INTO {schema}.inbox_lanes AS held (lane, holder, expires_at)
VALUES (%s, %s, clock_timestamp() + make_interval(secs => %s))
ON CONFLICT (lane) DO UPDATE SET holder = excluded.holder, expires_at = excluded.expires_at
WHERE held.holder = excluded.holder OR held.expires_at <= clock_timestamp();

-- name: remember
INSERT INTO {schema}.inbox_handled (id, expires_at)
VALUES (%s, clock_timestamp() + make_interval(secs => %s))
ON CONFLICT (id) DO UPDATE SET expires_at = excluded.expires_at;

-- name: release
DELETE FROM {schema}.inbox_lanes WHERE lane = %s AND holder = %s;

-- name: renew
UPDATE {schema}.inbox_lanes SET expires_at = clock_timestamp() + make_interval(secs => %s)
WHERE lane = ANY (%s) AND holder = %s;

-- name: prune_handled
DELETE FROM {schema}.inbox_handled WHERE id IN (
    SELECT id FROM {schema}.inbox_handled WHERE expires_at <= clock_timestamp()
    ORDER BY expires_at LIMIT 10000
);

-- name: prune_lanes
DELETE FROM {schema}.inbox_lanes WHERE expires_at <= clock_timestamp();
