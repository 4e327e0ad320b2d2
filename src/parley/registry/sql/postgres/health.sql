-- Probes and heartbeats. The column observed is the whole of it as JSON.

-- name: claim_probes
-- What another process claims at the same time is passed over.
UPDATE {schema}.probes SET due_at = %(until)s
WHERE entry_key IN (
    SELECT entry_key FROM {schema}.probes WHERE due_at <= %(now)s
    ORDER BY due_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED)
RETURNING entry_key;

-- name: schedule_probe
UPDATE {schema}.probes SET due_at = %(due_at)s WHERE entry_key = %(key)s;

-- name: has_entry
SELECT 1 FROM {schema}.entries WHERE key = %(key)s;

-- name: observation
-- A probe and a heartbeat of one entry come one after the other.
SELECT observed, liveness, last_beat FROM {schema}.observations WHERE entry_key = %(key)s
FOR UPDATE;

-- name: put_observation
INSERT INTO {schema}.observations
VALUES (%(key)s, %(observed)s, %(liveness)s, %(last_beat)s)
ON CONFLICT (entry_key) DO UPDATE SET observed = excluded.observed, liveness = excluded.liveness,
    last_beat = excluded.last_beat;

-- name: keys_of_owner
SELECT key FROM {schema}.entries WHERE identifier = %(identifier)s AND owner = %(owner)s
    AND standing <> 'withdrawn' ORDER BY key;

-- name: overdue_beats
SELECT entry_key FROM {schema}.observations
WHERE liveness IN ('alive', 'suspect') AND last_beat < %(before)s
ORDER BY last_beat LIMIT %(limit)s;

-- name: probe_at
-- Probe an agent no later than a time, if it is probed at all.
UPDATE {schema}.probes SET due_at = %(due_at)s WHERE entry_key = %(key)s AND due_at > %(due_at)s;
