-- Probes and heartbeats. The column observed is the whole of it as JSON.

-- name: claim_probes
UPDATE probes SET due_at = :until
WHERE entry_key IN (SELECT entry_key FROM probes WHERE due_at <= :now ORDER BY due_at LIMIT :limit)
RETURNING entry_key;

-- name: schedule_probe
UPDATE probes SET due_at = :due_at WHERE entry_key = :key;

-- name: has_entry
SELECT 1 FROM entries WHERE key = :key;

-- name: observation
SELECT observed, liveness, last_beat FROM observations WHERE entry_key = :key;

-- name: put_observation
INSERT INTO observations VALUES (:key, :observed, :liveness, :last_beat)
ON CONFLICT (entry_key) DO UPDATE SET observed = excluded.observed, liveness = excluded.liveness,
    last_beat = excluded.last_beat;

-- name: keys_of_owner
SELECT key FROM entries WHERE identifier = :identifier AND owner = :owner
    AND standing <> 'withdrawn' ORDER BY key;

-- name: overdue_beats
SELECT entry_key FROM observations
WHERE liveness IN ('alive', 'suspect') AND last_beat < :before ORDER BY last_beat LIMIT :limit;

-- name: probe_at
-- Probe an agent no later than a time, if it is probed at all.
UPDATE probes SET due_at = :due_at WHERE entry_key = :key AND due_at > :due_at;
