-- The audit of a registry.

-- piece: act_columns
seq, id, at, kind, issuer, actor, client, address, agent, tenant, subject, outcome, details,
previous, hash

-- name: lock_acts
-- Until the transaction ends nobody else appends, so that there is one chain.
SELECT pg_advisory_xact_lock(hashtextextended('parley registry acts {schema}', 0));

-- name: last_act
-- The number and the hash of the last line.
SELECT seq, hash FROM {schema}.acts ORDER BY seq DESC LIMIT 1;

-- name: known_acts
-- Those of some ids that are there.
SELECT id FROM {schema}.acts WHERE id = ANY(%(ids)s);

-- name: add_act
INSERT INTO {schema}.acts ({act_columns})
VALUES (%(seq)s, %(id)s, %(at)s, %(kind)s, %(issuer)s, %(actor)s, %(client)s, %(address)s,
    %(agent)s, %(tenant)s, %(subject)s, %(outcome)s, %(details)s, %(previous)s, %(hash)s);

-- name: acts
-- Lines after one, in order.
SELECT {act_columns} FROM {schema}.acts
WHERE seq > %(after)s
    AND (%(kind)s = '' OR kind = %(kind)s OR starts_with(kind, %(kind)s || '.'))
    AND (%(actor)s = '' OR actor = %(actor)s)
    AND (%(subject)s = '' OR subject = %(subject)s)
ORDER BY seq LIMIT %(limit)s;

-- name: newest_acts
-- The last lines, the newest first.
SELECT {act_columns} FROM {schema}.acts
WHERE seq > %(after)s
    AND (%(kind)s = '' OR kind = %(kind)s OR starts_with(kind, %(kind)s || '.'))
    AND (%(actor)s = '' OR actor = %(actor)s)
    AND (%(subject)s = '' OR subject = %(subject)s)
ORDER BY seq DESC LIMIT %(limit)s;
