-- What became of a transaction whose answer was lost.

-- name: own_transaction
-- NULL when nothing was written.
SELECT pg_current_xact_id_if_assigned()::text;

-- name: outcome
SELECT pg_xact_status(%s::xid8);
