-- Which callers have proved that a domain is theirs.

-- name: put_challenge
INSERT INTO {schema}.challenges VALUES (:domain, :owner, :token, :expires_at)
ON CONFLICT (domain, owner) DO UPDATE SET token = excluded.token, expires_at = excluded.expires_at;

-- name: prune_challenges
DELETE FROM {schema}.challenges WHERE expires_at < :before;

-- name: challenge
SELECT token, expires_at FROM {schema}.challenges
WHERE domain = :domain AND owner = :owner;

-- name: put_claim
-- A claim without a token keeps the one that it has.
INSERT INTO {schema}.claims AS c (owner, domain, method, expires_at, token, due_at)
VALUES (:owner, :domain, :method, :expires_at, :token, :due_at)
ON CONFLICT (owner, domain) DO UPDATE SET method = excluded.method,
    expires_at = excluded.expires_at, due_at = excluded.due_at,
    token = CASE WHEN excluded.token = '' THEN c.token ELSE excluded.token END;

-- name: claims
SELECT domain, expires_at FROM {schema}.claims WHERE owner = :owner ORDER BY domain;

-- name: claim_proofs
-- Those whose proof is looked for again; a claim of this moves it to the end of its lease.
UPDATE {schema}.claims SET due_at = :until
WHERE (owner, domain) IN (
    SELECT owner, domain FROM {schema}.claims WHERE due_at <= :now
    ORDER BY due_at LIMIT :limit {passing_over})
RETURNING domain, owner, method, token, expires_at;

-- name: schedule_proof
UPDATE {schema}.claims SET due_at = :due_at WHERE owner = :owner AND domain = :domain;

-- name: remove_claim
DELETE FROM {schema}.claims WHERE owner = :owner AND domain = :domain;

-- name: remove_challenge
DELETE FROM {schema}.challenges WHERE domain = :domain AND owner = :owner;
