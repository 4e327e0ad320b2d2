-- What an import adds, unless it is there. {schema} is the prefix of a table's name, {?} a parameter.
-- Each statement is for one row, and runs for many at once; it returns what it added: a key of the
-- row or nothing, and its name.

-- name: import_contexts
INSERT INTO {schema}contexts (agent, tenant, owner, context_id, said, touched_at)
VALUES ({?}, {?}, {?}, {?}, {?}, {?})
ON CONFLICT DO NOTHING RETURNING key, agent, tenant, owner, context_id;

-- name: import_messages
INSERT INTO {schema}history (context, n, message) VALUES ({?}, {?}, {?});

-- name: import_values
INSERT INTO {schema}context_values (context, name, value) VALUES ({?}, {?}, {?});

-- name: import_receipts
INSERT INTO {schema}receipts (agent, tenant, owner, message_id, digest, task_id, turn, reply, at)
VALUES ({?}, {?}, {?}, {?}, {?}, {?}, {?}, {?}, {?})
ON CONFLICT DO NOTHING RETURNING '', agent, tenant, owner, message_id;

-- name: import_events
INSERT INTO {schema}events (agent, name, at, value) VALUES ({?}, {?}, {?}, {?})
ON CONFLICT DO NOTHING RETURNING '', agent, name;
