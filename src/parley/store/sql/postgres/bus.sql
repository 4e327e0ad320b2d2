-- What the bus sends.

-- name: listen
LISTEN "{channel}";

-- name: notify
-- The commit waits for no disk. The setting is local to the statement: the connection may be a
-- pooler's after all. Frames are joined by line feeds, of which JSON has none: a list of strings
-- takes the driver longer than all the rest.
SELECT set_config('synchronous_commit', 'off', true), pg_notify(%s, frame)
FROM unnest(string_to_array(%s, chr(10))) AS frame;
