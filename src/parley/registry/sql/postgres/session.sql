-- What a connection of the index sets, and the clock that all processes share.

-- name: configure_session
-- Which plan is best depends on how frequent the words and values are: each search is planned.
SET jit = off;
SET plan_cache_mode = force_custom_plan;
SET random_page_cost = 1.1;

-- name: now
SELECT extract(epoch FROM clock_timestamp())::float8;
