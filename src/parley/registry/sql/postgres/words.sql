-- What shared statements have in braces.

-- piece: locked
FOR UPDATE

-- piece: passing_over
FOR UPDATE SKIP LOCKED

-- piece: by_due

-- piece: ids
SELECT unnest(%(ids)s::text[])

-- piece: lock
pg_advisory_xact_lock(hashtextextended('parley registry acts {schema}', 0))
