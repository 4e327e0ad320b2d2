-- Probes and heartbeats. The column observed is the whole of it as JSON.

-- name: claim_probes
-- What another process claims at the same time is passed over.
UPDATE {schema}.probes SET due_at = :until
WHERE entry_key IN (
    SELECT entry_key FROM {schema}.probes WHERE due_at <= :now
    ORDER BY due_at LIMIT :limit {passing_over})
RETURNING entry_key;

-- name: schedule_probe
UPDATE {schema}.probes SET due_at = :due_at WHERE entry_key = :key;

-- name: has_entry
SELECT 1 FROM {schema}.entries WHERE key = :key;

-- name: observation
-- A probe and a heartbeat of one entry come one after the other.
SELECT observed, liveness, last_beat FROM {schema}.observations WHERE entry_key = :key
{locked};

-- name: put_observation
INSERT INTO {schema}.observations
VALUES (:key, :observed, :liveness, :last_beat)
ON CONFLICT (entry_key) DO UPDATE SET observed = excluded.observed, liveness = excluded.liveness,
    last_beat = excluded.last_beat;

-- name: keys_of_owner
SELECT key FROM {schema}.entries WHERE identifier = :identifier AND owner = :owner
    AND standing <> 'withdrawn' ORDER BY key;

-- name: overdue_beats
SELECT entry_key FROM {schema}.observations
WHERE liveness IN ('alive', 'suspect') AND last_beat < :before
ORDER BY last_beat LIMIT :limit;

-- name: probe_at
-- Probe an agent no later than a time, if it is probed at all.
UPDATE {schema}.probes SET due_at = :due_at WHERE entry_key = :key AND due_at > :due_at;
