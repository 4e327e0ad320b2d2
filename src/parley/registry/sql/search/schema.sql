-- What searches look at, in the process alone: made from what the database of the index keeps.
-- Times are in ms since 1970.

-- name: cache
-- How many KiB of the temporary file are in memory at most.
PRAGMA cache_size = -65536;

-- name: entries
-- name is what display names are ordered by.
CREATE TABLE entries (
    key INTEGER PRIMARY KEY,
    standing TEXT NOT NULL,
    is_public INTEGER NOT NULL,
    identifier TEXT NOT NULL,
    publisher TEXT NOT NULL,
    name TEXT NOT NULL,
    type TEXT NOT NULL,
    version TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL);

-- name: in_order
-- Every order of a list has an index: a page is read without sorting all entries.
CREATE INDEX in_order ON entries (standing, identifier, key);

-- name: by_name
CREATE INDEX by_name ON entries (standing, name, key);

-- name: by_publisher
CREATE INDEX by_publisher ON entries (standing, publisher, key);

-- name: by_type
CREATE INDEX by_type ON entries (standing, type, key);

-- name: by_version
CREATE INDEX by_version ON entries (standing, version, key);

-- name: by_created
CREATE INDEX by_created ON entries (standing, created_at, key);

-- name: by_updated
CREATE INDEX by_updated ON entries (standing, updated_at, key);

-- name: audiences
CREATE TABLE audiences (
    entry_key INTEGER NOT NULL,
    token TEXT NOT NULL,
    PRIMARY KEY (entry_key, token)) WITHOUT ROWID;

-- name: terms
-- A value of a field path. id is the digest of the path and the normalized value. number and
-- instant are what the value says, if it is a number or a time.
CREATE TABLE terms (
    id INTEGER PRIMARY KEY,
    field TEXT NOT NULL,
    value TEXT NOT NULL,
    normalized TEXT NOT NULL,
    number REAL,
    instant INTEGER);

-- name: terms_by_field
CREATE INDEX terms_by_field ON terms (field);

-- name: terms_by_number
CREATE INDEX terms_by_number ON terms (field, number) WHERE number IS NOT NULL;

-- name: terms_by_instant
CREATE INDEX terms_by_instant ON terms (field, instant) WHERE instant IS NOT NULL;

-- name: entry_terms
CREATE TABLE entry_terms (
    term_id INTEGER NOT NULL,
    entry_key INTEGER NOT NULL,
    PRIMARY KEY (term_id, entry_key)) WITHOUT ROWID;

-- name: entry_terms_by_entry
CREATE INDEX entry_terms_by_entry ON entry_terms (entry_key, term_id);

-- name: entry_words
-- The words of the texts by weight, as index/words.py makes them.
CREATE VIRTUAL TABLE entry_words USING fts5 (
    a, b, c, d, tokenize = "unicode61 remove_diacritics 0 categories 'L* N* M* Co'");

-- name: vocabulary
-- Every word, and in how many entries it is.
CREATE VIRTUAL TABLE vocabulary USING fts5vocab (entry_words, row);
