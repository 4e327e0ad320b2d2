-- The audit of a registry.

-- piece: act_columns
seq, id, at, kind, issuer, actor, client, address, agent, tenant, subject, outcome, details,
previous, hash

-- name: lock_acts
-- Until the transaction ends nobody else appends, so that there is one chain.
SELECT {lock};

-- name: last_act
-- The number and the hash of the last line.
SELECT seq, hash FROM {schema}.acts ORDER BY seq DESC LIMIT 1;

-- name: known_acts
-- Those of some ids that are there.
SELECT id FROM {schema}.acts WHERE id IN ({ids});

-- name: add_act
INSERT INTO {schema}.acts ({act_columns})
VALUES (:seq, :id, :at, :kind, :issuer, :actor, :client, :address,
    :agent, :tenant, :subject, :outcome, :details, :previous, :hash);

-- name: acts
-- Lines after one, in order.
SELECT {act_columns} FROM {schema}.acts
WHERE seq > :after
    AND (:kind = '' OR kind = :kind OR substr(kind, 1, length(:kind) + 1) = :kind || '.')
    AND (:actor = '' OR actor = :actor)
    AND (:subject = '' OR subject = :subject)
ORDER BY seq LIMIT :limit;

-- name: newest_acts
-- The last lines, the newest first.
SELECT {act_columns} FROM {schema}.acts
WHERE seq > :after
    AND (:kind = '' OR kind = :kind OR substr(kind, 1, length(:kind) + 1) = :kind || '.')
    AND (:actor = '' OR actor = :actor)
    AND (:subject = '' OR subject = :subject)
ORDER BY seq DESC LIMIT :limit;
