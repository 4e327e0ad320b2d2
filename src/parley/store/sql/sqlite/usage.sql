-- Usage by day, and what was taken of the amounts of limits.

-- piece: usage_columns
day, agent, tenant, caller, skill, requests, refusals, messages, tasks, output_bytes, run_ms

-- name: add_usage
INSERT INTO usage ({usage_columns})
VALUES (:day, :agent, :tenant, :caller, :skill,
    :requests, :refusals, :messages, :tasks, :output_bytes, :run_ms)
ON CONFLICT (day, agent, tenant, caller, skill) DO UPDATE SET
    requests = requests + excluded.requests,
    refusals = refusals + excluded.refusals,
    messages = messages + excluded.messages,
    tasks = tasks + excluded.tasks,
    output_bytes = output_bytes + excluded.output_bytes,
    run_ms = run_ms + excluded.run_ms;

-- name: usage
-- What was used, the latest days first.
SELECT {usage_columns} FROM usage
WHERE day BETWEEN :since AND :until
    AND (agent = :agent OR :agent IS NULL)
    AND (tenant = :tenant OR :tenant IS NULL)
    AND (caller = :caller OR :caller IS NULL)
ORDER BY day DESC, agent, tenant, caller, skill
LIMIT :limit;

-- name: sum_usage
-- The sum of what was used.
SELECT coalesce(sum(requests), 0),
    coalesce(sum(refusals), 0),
    coalesce(sum(messages), 0),
    coalesce(sum(tasks), 0),
    coalesce(sum(output_bytes), 0),
    coalesce(sum(run_ms), 0)
FROM usage
WHERE day BETWEEN :since AND :until
    AND (agent = :agent OR :agent IS NULL)
    AND (tenant = :tenant OR :tenant IS NULL)
    AND (caller = :caller OR :caller IS NULL);

-- name: prune_usage
DELETE FROM usage WHERE day < :before_day;

-- name: prune_quota_slots
DELETE FROM quota_slots WHERE ends_at <= :now;

-- name: quota_slots
-- What was taken of an amount, by slot.
SELECT slot, taken FROM quota_slots WHERE name = ? AND slot >= ?;

-- name: put_quota_slot
INSERT INTO quota_slots (name, slot, taken, ends_at) VALUES (?, ?, ?, ?)
ON CONFLICT (name, slot) DO UPDATE SET taken = excluded.taken;
