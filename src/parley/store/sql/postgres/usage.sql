-- Usage by day, and what was taken of the amounts of limits. {schema} is the schema of the store.

-- piece: usage_columns
day, agent, tenant, caller, skill, requests, refusals, messages, tasks, output_bytes, run_ms

-- name: add_usage
INSERT INTO {schema}.usage AS was ({usage_columns})
VALUES (%(day)s, %(agent)s, %(tenant)s, %(caller)s, %(skill)s, %(requests)s, %(refusals)s,
    %(messages)s, %(tasks)s, %(output_bytes)s, %(run_ms)s)
ON CONFLICT (day, agent, tenant, caller, skill) DO UPDATE SET
    requests = was.requests + excluded.requests,
    refusals = was.refusals + excluded.refusals,
    messages = was.messages + excluded.messages,
    tasks = was.tasks + excluded.tasks,
    output_bytes = was.output_bytes + excluded.output_bytes,
    run_ms = was.run_ms + excluded.run_ms;

-- name: usage
-- What was used, the latest days first.
SELECT {usage_columns} FROM {schema}.usage
WHERE day BETWEEN %(since)s AND %(until)s
    AND (agent = %(agent)s::text OR %(agent)s::text IS NULL)
    AND (tenant = %(tenant)s::text OR %(tenant)s::text IS NULL)
    AND (caller = %(caller)s::text OR %(caller)s::text IS NULL)
ORDER BY day DESC, agent, tenant, caller, skill
LIMIT %(limit)s;

-- name: sum_usage
-- The sum of what was used.
SELECT coalesce(sum(requests), 0)::bigint,
    coalesce(sum(refusals), 0)::bigint,
    coalesce(sum(messages), 0)::bigint,
    coalesce(sum(tasks), 0)::bigint,
    coalesce(sum(output_bytes), 0)::bigint,
    coalesce(sum(run_ms), 0)::bigint
FROM {schema}.usage
WHERE day BETWEEN %(since)s AND %(until)s
    AND (agent = %(agent)s::text OR %(agent)s::text IS NULL)
    AND (tenant = %(tenant)s::text OR %(tenant)s::text IS NULL)
    AND (caller = %(caller)s::text OR %(caller)s::text IS NULL);

-- name: prune_usage
DELETE FROM {schema}.usage WHERE day < %(before_day)s;

-- name: prune_quota_slots
DELETE FROM {schema}.quota_slots WHERE ends_at <= %(now)s;

-- name: lock_quota
-- Until the transaction ends nobody else takes from an amount.
SELECT pg_advisory_xact_lock(hashtextextended('parley quota {schema} ' || %(name)s::text, 0));

-- name: take_quota
-- Take from an amount, under its lock; return how much, how much was taken before, and since when.
WITH counted AS (
    SELECT coalesce(sum(taken), 0)::bigint AS taken, min(slot) AS first
    FROM {schema}.quota_slots
    WHERE name = %(name)s AND slot >= %(oldest)s
), given AS (
    SELECT CASE WHEN %(wanted)s::bigint >= 0
        THEN greatest(0, least(%(wanted)s::bigint, %(amount)s::bigint - taken))
        ELSE greatest(%(wanted)s::bigint, -coalesce((
            SELECT taken FROM {schema}.quota_slots WHERE name = %(name)s AND slot = %(slot)s
        ), 0)) END AS amount
    FROM counted
), put AS (
    INSERT INTO {schema}.quota_slots AS was (name, slot, taken, ends_at)
    SELECT %(name)s, %(slot)s, amount, %(ends_at)s FROM given WHERE amount <> 0
    ON CONFLICT (name, slot) DO UPDATE SET taken = was.taken + excluded.taken
)
SELECT given.amount, counted.taken, coalesce(counted.first, %(slot)s) FROM given, counted;
