-- Finding entries: by conditions, by words, and what values they have. Searches are put together
-- from the pieces; e is the entry (or its row in entry_words), {n} the number of a condition.

-- piece: is_public
e.is_public

-- piece: is_visible
(e.is_public OR EXISTS (SELECT 1 FROM {schema}.audiences a WHERE a.entry_key = e.key
    AND a.token = ANY(%(tokens)s::text[])))

-- piece: has_standing
e.standing = %(standing)s

-- piece: has_standings
e.standing = ANY(%(standings)s::text[])

-- piece: has_term
-- OFFSET 0 keeps this a look at the index for each entry: the list of all that have a frequent value
-- would take longer to read.
EXISTS (SELECT 1 FROM {schema}.entry_terms t WHERE t.entry_key = e.key
    AND t.term_id = %(term_{n})s OFFSET 0)

-- piece: has_terms
EXISTS (SELECT 1 FROM {schema}.entry_terms t WHERE t.entry_key = e.key
    AND t.term_id = ANY(%(terms_{n})s::bigint[]) OFFSET 0)

-- piece: has_value
EXISTS (SELECT 1 FROM {schema}.entry_terms et JOIN {schema}.terms t ON t.id = et.term_id
    WHERE et.entry_key = e.key AND t.field = %(field_{n})s AND ({comparisons}) OFFSET 0)

-- piece: is_one_of_few
e.key IN (SELECT t.entry_key FROM {schema}.entry_terms t WHERE t.term_id = ANY(%(few)s::bigint[]))

-- piece: is_key
e.key = ANY(%(keys)s::bigint[])

-- piece: is_created
e.created_at {operator} %({value})s

-- piece: is_updated
e.updated_at {operator} %({value})s

-- piece: is_created_apart
-- The same where e is not the table of entries.
e.key IN (SELECT x.key FROM {schema}.entries x WHERE x.created_at {operator} %({value})s)

-- piece: is_updated_apart
e.key IN (SELECT x.key FROM {schema}.entries x WHERE x.updated_at {operator} %({value})s)

-- piece: contains
strpos(t.normalized, %({value})s) > 0

-- piece: number
t.number {operator} %({value})s

-- piece: instant
t.instant {operator} %({value})s

-- piece: text
t.normalized {operator} %({value})s

-- piece: terms_of_field
SELECT t.id, t.entries FROM {schema}.terms t WHERE t.field = %(field_{n})s AND ({comparisons})
LIMIT %(limit)s

-- name: known_terms
SELECT id, entries FROM {schema}.terms WHERE id = ANY(%(ids)s::bigint[]);

-- piece: from_entries
{schema}.entries e

-- piece: from_terms
(SELECT DISTINCT entry_key FROM {schema}.entry_terms
    WHERE term_id = ANY(%(few)s::bigint[])) s
JOIN {schema}.entries e ON e.key = s.entry_key

-- piece: count
SELECT count(*) FROM {source} WHERE {conditions}

-- piece: browse
SELECT e.key FROM {source} WHERE {conditions} ORDER BY {order} LIMIT %(limit)s OFFSET %(offset)s

-- piece: facet
WITH counted AS (
    SELECT t.id, t.value, count(*) AS n FROM {schema}.terms t
    JOIN {schema}.entry_terms et ON et.term_id = t.id
    JOIN {schema}.visibility e ON e.key = et.entry_key
    WHERE t.field = %(field)s AND {conditions} GROUP BY t.id, t.value)
SELECT value, n, (SELECT sum(n)::bigint FROM counted) FROM counted
WHERE n >= %(min_count)s ORDER BY n DESC, value LIMIT %(limit)s

-- piece: facet_of_few
-- The same for entries that are fewer than those with the field.
WITH pairs AS MATERIALIZED (
    SELECT et.term_id FROM {source}
    JOIN {schema}.entry_terms et ON et.entry_key = e.key WHERE {conditions}),
counted AS (
    SELECT t.id, t.value, count(*) AS n FROM pairs
    JOIN {schema}.terms t ON t.id = pairs.term_id
    WHERE t.field = %(field)s GROUP BY t.id, t.value)
SELECT value, n, (SELECT sum(n)::bigint FROM counted) FROM counted
WHERE n >= %(min_count)s ORDER BY n DESC, value LIMIT %(limit)s

-- piece: from_keys
unnest(%(keys)s::bigint[]) k(key) JOIN {schema}.entries e ON e.key = k.key

-- name: known_words
SELECT word, entries FROM {schema}.words WHERE word = ANY(%(words)s::text[]);

-- name: words_from
-- Words with a beginning, the most frequent first.
SELECT word, entries FROM {schema}.words WHERE word >= %(beginning)s AND word < %(end)s
ORDER BY entries DESC, word LIMIT %(limit)s;

-- piece: matches
-- Ranked are the first that fit, within a budget; more only when all words are very common.
SELECT key, relevance::float8 FROM (
    SELECT e.key, {rank} AS relevance FROM {schema}.entry_words e
    WHERE e.words @@ %(query)s::tsquery AND {conditions} LIMIT %(budget)s) m
ORDER BY relevance DESC, key LIMIT %(limit)s

-- piece: rank
-- Of one group of words. A word that stands there often counts little more than one that stands
-- there once; a long text makes it count less.
%(weight_{n})s * ts_rank('{0.125,0.25,0.5,1}', e.words, %(words_{n})s::tsquery, 1)
