-- Putting entries, and reading those that are known by key, identifier or source. Many rows are one
-- parameter, a JSON array; bytes in it are base64.

-- name: lock_changes
-- Whoever changes entries waits here for the one before to commit.
SELECT value FROM {schema}.counters WHERE name = 'change' FOR UPDATE;

-- name: counter
SELECT value FROM {schema}.counters WHERE name = %(name)s;

-- name: set_counter
UPDATE {schema}.counters SET value = %(value)s WHERE name = %(name)s;

-- piece: state_columns
key, place, identifier, source, authority, standing, reason, trust, is_probed, decided,
decided_reason, decided_card, digest, card_digest, card_number, created_at, revision

-- name: states_of_identifiers
SELECT {state_columns} FROM {schema}.entries WHERE identifier = ANY(%(identifiers)s::text[]) ORDER BY key;

-- name: states_of_source
-- Those of a source that are not kept.
SELECT {state_columns} FROM {schema}.entries e WHERE source = %(source)s AND standing <> 'withdrawn'
    AND NOT EXISTS (SELECT 1 FROM unnest(%(keep)s::text[]) k(identifier)
        WHERE k.identifier COLLATE "C" = e.identifier);

-- name: state
SELECT {state_columns} FROM {schema}.entries WHERE key = %(key)s;

-- name: put_entries
INSERT INTO {schema}.entries (key, place, identifier, source, authority, standing, reason, trust,
    owner, is_probed, digest, card_digest, card_number, created_at, updated_at, seen_at, revision,
    change)
SELECT key, decode(place, 'base64'), identifier, source, authority, standing, reason, trust, owner,
    is_probed, decode(digest, 'base64'), card_digest, card_number, now, now, now, revision, change
FROM json_to_recordset(%(rows)s::json) AS r(key bigint, place text, identifier text, source text,
    authority integer, standing text, reason text, trust text, owner text, is_probed boolean,
    digest text, card_digest text, card_number integer, now bigint, revision integer, change bigint)
ON CONFLICT (key) DO UPDATE SET authority = excluded.authority, standing = excluded.standing,
    reason = excluded.reason, trust = excluded.trust, owner = excluded.owner,
    is_probed = excluded.is_probed, digest = excluded.digest, card_digest = excluded.card_digest,
    card_number = excluded.card_number, updated_at = excluded.updated_at,
    seen_at = excluded.seen_at, revision = excluded.revision, change = excluded.change;

-- name: touch
UPDATE {schema}.entries SET change = %(change)s WHERE key = %(key)s;

-- name: see_entries
UPDATE {schema}.entries SET seen_at = %(now)s WHERE key = ANY(%(keys)s::bigint[]);

-- name: set_standings
UPDATE {schema}.entries e SET standing = r.standing, reason = r.reason,
    digest = decode(r.digest, 'base64'), change = r.change, updated_at = r.now
FROM json_to_recordset(%(rows)s::json) AS r(key bigint, standing text, reason text,
    digest text, change bigint, now bigint)
WHERE e.key = r.key;

-- name: decide
UPDATE {schema}.entries SET decided = %(decided)s, decided_reason = %(reason)s,
    decided_by = %(by)s, decided_at = %(now)s, decided_card = card_digest WHERE key = %(key)s;

-- name: documents_of
SELECT entry_key, document FROM {schema}.documents WHERE entry_key = ANY(%(keys)s::bigint[]);

-- name: put_documents
INSERT INTO {schema}.documents
SELECT key, decode(document, 'base64')
FROM json_to_recordset(%(rows)s::json) AS r(key bigint, document text)
ON CONFLICT (entry_key) DO UPDATE SET document = excluded.document;

-- name: last_cards
-- The newest version of each entry's card.
SELECT DISTINCT ON (entry_key) entry_key, number, digest, card FROM {schema}.card_versions
WHERE entry_key = ANY(%(keys)s::bigint[]) ORDER BY entry_key, number DESC;

-- name: put_cards
INSERT INTO {schema}.card_versions
SELECT key, number, digest, version, now, decode(difference, 'base64'), decode(card, 'base64')
FROM json_to_recordset(%(rows)s::json) AS r(key bigint, number integer, digest text, version text,
    now bigint, difference text, card text);

-- name: prune_cards
DELETE FROM {schema}.card_versions v
USING json_to_recordset(%(rows)s::json) AS r(key bigint, until integer)
WHERE v.entry_key = r.key AND v.number <= r.until;

-- name: add_probes
INSERT INTO {schema}.probes
SELECT key, now FROM json_to_recordset(%(rows)s::json) AS r(key bigint, now bigint)
ON CONFLICT DO NOTHING;

-- name: remove_probes
DELETE FROM {schema}.probes p
USING json_to_recordset(%(rows)s::json) AS r(key bigint) WHERE p.entry_key = r.key;

-- name: entries
SELECT e.key, e.standing, e.reason, e.trust, e.card_digest, e.created_at, e.updated_at, e.seen_at,
    e.revision, e.change, d.document, v.card, o.observed, o.liveness, o.last_beat
FROM {schema}.entries e
JOIN {schema}.documents d ON d.entry_key = e.key
LEFT JOIN {schema}.card_versions v ON v.entry_key = e.key AND v.number = e.card_number
LEFT JOIN {schema}.observations o ON o.entry_key = e.key
WHERE e.key = ANY(%(keys)s::bigint[]);

-- name: keys_of_identifier
-- The listed one first, then by authority and age.
SELECT e.key FROM {schema}.entries e WHERE e.identifier = %(identifier)s
ORDER BY e.standing <> 'listed', e.standing = 'withdrawn', e.authority, e.created_at, e.key;

-- name: versions
SELECT digest, seen_at, version, difference, card FROM {schema}.card_versions
WHERE entry_key = %(key)s ORDER BY number DESC LIMIT %(limit)s;

-- name: changed_keys
SELECT key FROM {schema}.entries WHERE change > %(after)s ORDER BY change LIMIT %(limit)s;

-- name: changed_entries
-- What searches look at, by when it last changed.
SELECT e.change, e.key, e.standing, e.created_at, e.updated_at, d.document, o.observed, o.liveness
FROM {schema}.entries e JOIN {schema}.documents d ON d.entry_key = e.key
LEFT JOIN {schema}.observations o ON o.entry_key = e.key
WHERE e.change > %(after)s ORDER BY e.change LIMIT %(limit)s;

-- name: forgettable
SELECT key FROM {schema}.entries WHERE standing = 'withdrawn' AND decided = ''
    AND updated_at < %(before)s
ORDER BY updated_at, key LIMIT %(limit)s;

-- name: forget_entries
DELETE FROM {schema}.entries WHERE key = ANY(%(keys)s::bigint[]);

-- name: forget_documents
DELETE FROM {schema}.documents WHERE entry_key = ANY(%(keys)s::bigint[]);

-- name: forget_cards
DELETE FROM {schema}.card_versions WHERE entry_key = ANY(%(keys)s::bigint[]);

-- name: forget_observations
DELETE FROM {schema}.observations WHERE entry_key = ANY(%(keys)s::bigint[]);
