-- Putting entries, and reading those that are known by key, identifier or source.

-- name: lock_changes
-- The transaction has the file's lock already.
SELECT value FROM counters WHERE name = 'change';

-- name: counter
SELECT value FROM counters WHERE name = :name;

-- name: set_counter
UPDATE counters SET value = :value WHERE name = :name;

-- piece: state_columns
key, place, identifier, source, authority, standing, reason, trust, is_probed, decided,
decided_reason, decided_card, digest, card_digest, card_number, created_at, revision

-- name: states_of_identifiers
SELECT {state_columns} FROM entries WHERE identifier IN (SELECT value FROM json_each(:identifiers))
ORDER BY key;

-- name: states_of_source
-- Those of a source that are not kept.
SELECT {state_columns} FROM entries WHERE source = :source AND standing <> 'withdrawn'
    AND identifier NOT IN (SELECT value FROM json_each(:keep));

-- name: state
SELECT {state_columns} FROM entries WHERE key = :key;

-- name: put_entries
INSERT INTO entries (key, place, identifier, source, authority, standing, reason, trust, owner,
    is_probed, digest, card_digest, card_number, created_at, updated_at, seen_at, revision, change)
VALUES (:key, :place, :identifier, :source, :authority, :standing, :reason, :trust, :owner,
    :is_probed, :digest, :card_digest, :card_number, :now, :now, :now, :revision, :change)
ON CONFLICT (key) DO UPDATE SET authority = excluded.authority, standing = excluded.standing,
    reason = excluded.reason, trust = excluded.trust, owner = excluded.owner,
    is_probed = excluded.is_probed, digest = excluded.digest, card_digest = excluded.card_digest,
    card_number = excluded.card_number, updated_at = excluded.updated_at,
    seen_at = excluded.seen_at, revision = excluded.revision, change = excluded.change;

-- name: touch
UPDATE entries SET change = :change WHERE key = :key;

-- name: see_entries
UPDATE entries SET seen_at = :now WHERE key IN (SELECT value FROM json_each(:keys));

-- name: set_standings
UPDATE entries SET standing = :standing, reason = :reason, digest = :digest, change = :change,
    updated_at = :now WHERE key = :key;

-- name: decide
UPDATE entries SET decided = :decided, decided_reason = :reason, decided_by = :by,
    decided_at = :now, decided_card = card_digest WHERE key = :key;

-- name: documents_of
SELECT entry_key, document FROM documents
WHERE entry_key IN (SELECT value FROM json_each(:keys));

-- name: put_documents
INSERT INTO documents VALUES (:key, :document)
ON CONFLICT (entry_key) DO UPDATE SET document = excluded.document;

-- name: last_cards
-- The newest version of each entry's card.
SELECT v.entry_key, v.number, v.digest, v.card
FROM json_each(:keys) k CROSS JOIN card_versions v ON v.entry_key = k.value
    AND v.number = (SELECT max(number) FROM card_versions WHERE entry_key = k.value);

-- name: put_cards
INSERT INTO card_versions VALUES (:key, :number, :digest, :version, :now, :difference, :card);

-- name: prune_cards
DELETE FROM card_versions WHERE entry_key = :key AND number <= :until;

-- name: add_probes
INSERT OR IGNORE INTO probes VALUES (:key, :now);

-- name: remove_probes
DELETE FROM probes WHERE entry_key = :key;

-- name: entries
SELECT e.key, e.standing, e.reason, e.trust, e.card_digest, e.created_at, e.updated_at, e.seen_at,
    e.revision, e.change, d.document, v.card, o.observed, o.liveness, o.last_beat
FROM json_each(:keys) k
CROSS JOIN entries e ON e.key = k.value
JOIN documents d ON d.entry_key = e.key
LEFT JOIN card_versions v ON v.entry_key = e.key AND v.number = e.card_number
LEFT JOIN observations o ON o.entry_key = e.key;

-- name: keys_of_identifier
-- The listed one first, then by authority and age.
SELECT e.key FROM entries e WHERE e.identifier = :identifier
ORDER BY e.standing <> 'listed', e.standing = 'withdrawn', e.authority, e.created_at, e.key;

-- name: versions
SELECT digest, seen_at, version, difference, card FROM card_versions
WHERE entry_key = :key ORDER BY number DESC LIMIT :limit;

-- name: changed_keys
SELECT key FROM entries WHERE change > :after ORDER BY change LIMIT :limit;

-- name: changed_entries
-- What searches look at, by when it last changed.
SELECT e.change, e.key, e.standing, e.created_at, e.updated_at, d.document, o.observed, o.liveness
FROM entries e JOIN documents d ON d.entry_key = e.key
LEFT JOIN observations o ON o.entry_key = e.key
WHERE e.change > :after ORDER BY e.change LIMIT :limit;

-- name: forgettable
SELECT key FROM entries WHERE standing = 'withdrawn' AND decided = '' AND updated_at < :before
ORDER BY updated_at, key LIMIT :limit;

-- name: forget_entries
DELETE FROM entries WHERE key IN (SELECT value FROM json_each(:keys));

-- name: forget_documents
DELETE FROM documents WHERE entry_key IN (SELECT value FROM json_each(:keys));

-- name: forget_cards
DELETE FROM card_versions WHERE entry_key IN (SELECT value FROM json_each(:keys));

-- name: forget_observations
DELETE FROM observations WHERE entry_key IN (SELECT value FROM json_each(:keys));
