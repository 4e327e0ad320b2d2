-- Putting entries, and finding them: by conditions, by words, and the values they have. Searches are
-- put together from the pieces; e is the entry, {n} the number of a condition.

-- name: put_entries
INSERT OR REPLACE INTO entries VALUES (:key, :standing, :is_public, :identifier, :publisher, :name,
    :type, :version, :created_at, :updated_at);

-- name: put_audiences
INSERT OR IGNORE INTO audiences VALUES (:key, :token);

-- name: put_terms
INSERT OR IGNORE INTO terms VALUES (:id, :field, :value, :normalized, :number, :instant);

-- name: put_entry_terms
INSERT OR IGNORE INTO entry_terms VALUES (:term_id, :key);

-- name: put_words
INSERT INTO entry_words (rowid, a, b, c, d) VALUES (:key, :a, :b, :c, :d);

-- name: terms_of_entries
SELECT DISTINCT term_id FROM entry_terms
WHERE entry_key IN (SELECT value FROM json_each(:keys));

-- name: remove_words
DELETE FROM entry_words WHERE rowid IN (SELECT value FROM json_each(:keys));

-- name: remove_entry_terms
DELETE FROM entry_terms WHERE entry_key IN (SELECT value FROM json_each(:keys));

-- name: remove_audiences
DELETE FROM audiences WHERE entry_key IN (SELECT value FROM json_each(:keys));

-- name: remove_entries
DELETE FROM entries WHERE key IN (SELECT value FROM json_each(:keys));

-- name: prune_terms
DELETE FROM terms WHERE id IN (SELECT value FROM json_each(:ids))
    AND NOT EXISTS (SELECT 1 FROM entry_terms t WHERE t.term_id = terms.id);

-- piece: is_public
e.is_public = 1

-- piece: is_visible
(e.is_public = 1 OR EXISTS (SELECT 1 FROM audiences a WHERE a.entry_key = e.key
    AND a.token IN (SELECT value FROM json_each(:tokens))))

-- piece: has_standing
e.standing = :standing

-- piece: has_standings
e.standing IN (SELECT value FROM json_each(:standings))

-- piece: has_term
EXISTS (SELECT 1 FROM entry_terms t WHERE t.entry_key = e.key AND t.term_id = :term_{n})

-- piece: has_terms
EXISTS (SELECT 1 FROM entry_terms t WHERE t.entry_key = e.key
    AND t.term_id IN (SELECT value FROM json_each(:terms_{n})))

-- piece: has_value
EXISTS (SELECT 1 FROM entry_terms et CROSS JOIN terms t ON t.id = et.term_id
    WHERE et.entry_key = e.key AND t.field = :field_{n} AND ({comparisons}))

-- piece: is_one_of_few
-- Looked up in a set that is made once.
+entry_words.rowid IN (SELECT t.entry_key FROM entry_terms t
    WHERE t.term_id IN (SELECT value FROM json_each(:few)))

-- piece: is_key
e.key IN (SELECT value FROM json_each(:keys))

-- piece: is_created
e.created_at {operator} :{value}

-- piece: is_updated
e.updated_at {operator} :{value}

-- piece: contains
instr(t.normalized, :{value}) > 0

-- piece: number
t.number {operator} :{value}

-- piece: instant
t.instant {operator} :{value}

-- piece: text
t.normalized {operator} :{value}

-- piece: entries_of_term
-- As many as decide on the way of a search.
(SELECT count(*) FROM (SELECT 1 FROM entry_terms x WHERE x.term_id = t.id LIMIT :enough))

-- piece: terms_of_field
SELECT t.id, {entries_of_term} FROM terms t WHERE t.field = :field_{n} AND ({comparisons})
LIMIT :limit

-- name: known_terms
SELECT t.id, {entries_of_term} FROM terms t WHERE t.id IN (SELECT value FROM json_each(:ids));

-- piece: from_entries
entries e

-- piece: from_terms
(SELECT DISTINCT entry_key FROM entry_terms
    WHERE term_id IN (SELECT value FROM json_each(:few))) s
CROSS JOIN entries e ON e.key = s.entry_key

-- piece: from_keys
json_each(:keys) k CROSS JOIN entries e ON e.key = k.value

-- piece: count
SELECT count(*) FROM {source} WHERE {conditions}

-- piece: browse
SELECT e.key FROM {source} WHERE {conditions} ORDER BY {order} LIMIT :limit OFFSET :offset

-- piece: facet
WITH counted AS (
    SELECT t.id, t.value, count(*) AS n FROM terms t
    CROSS JOIN entry_terms et ON et.term_id = t.id
    CROSS JOIN entries e ON e.key = et.entry_key
    WHERE t.field = :field AND {conditions} GROUP BY t.id)
SELECT value, n, (SELECT sum(n) FROM counted) FROM counted
WHERE n >= :min_count ORDER BY n DESC, value LIMIT :limit

-- piece: facet_of_few
-- The same for entries that are fewer than those with the field.
WITH counted AS (
    SELECT t.id, t.value, count(*) AS n FROM {source}
    CROSS JOIN entry_terms et ON et.entry_key = e.key
    CROSS JOIN terms t ON t.id = et.term_id
    WHERE t.field = :field AND {conditions} GROUP BY t.id)
SELECT value, n, (SELECT sum(n) FROM counted) FROM counted
WHERE n >= :min_count ORDER BY n DESC, value LIMIT :limit

-- name: known_words
SELECT term, doc FROM vocabulary WHERE term IN (SELECT value FROM json_each(:words));

-- name: words_from
-- Words with a beginning, the most frequent first.
SELECT term, doc FROM vocabulary WHERE term >= :beginning AND term < :end
ORDER BY doc DESC, term LIMIT :limit;

-- name: total
SELECT count(*) FROM entries;

-- piece: matches
-- Ranked are the first that fit, within a budget; more only when all words are very common.
SELECT key, relevance FROM (
    SELECT e.key AS key, -bm25(entry_words, 1.0, 1.0, 0.9, 0.5) AS relevance
    FROM entry_words CROSS JOIN entries e ON e.key = entry_words.rowid
    WHERE entry_words MATCH :query AND {conditions} LIMIT :budget)
ORDER BY relevance DESC, key LIMIT :limit

-- name: words_of_entries
SELECT rowid, a, b, c, d FROM entry_words
WHERE rowid IN (SELECT value FROM json_each(:keys));
