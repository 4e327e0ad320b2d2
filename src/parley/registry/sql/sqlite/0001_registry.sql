-- Entries and how they are found, sources, health, proofs of domains. Times are in ms since 1970.

-- Numbers that are handed out: "change" for every change of an entry, "key" for every new entry;
-- and "entries", how many there are. Whoever writes entries takes them from here first.
CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO counters VALUES ('change', 0), ('key', 0), ('entries', 0);

-- place is the digest of identifier and source. name is what display names are ordered by.
-- authority counts from the strongest, 0. decided is the standing that an operator chose, and
-- decided_card the card that was there then. card_number is that of card_versions, 0 for none.
CREATE TABLE entries (
    key INTEGER PRIMARY KEY,
    place BLOB NOT NULL,
    identifier TEXT NOT NULL,
    source TEXT NOT NULL,
    publisher TEXT NOT NULL,
    name TEXT NOT NULL,
    type TEXT NOT NULL,
    version TEXT NOT NULL,
    authority INTEGER NOT NULL,
    standing TEXT NOT NULL,
    reason TEXT NOT NULL,
    trust TEXT NOT NULL,
    owner TEXT NOT NULL,
    is_public INTEGER NOT NULL,
    is_probed INTEGER NOT NULL,
    decided TEXT NOT NULL DEFAULT '',
    decided_reason TEXT NOT NULL DEFAULT '',
    decided_by TEXT NOT NULL DEFAULT '',
    decided_at INTEGER,
    decided_card TEXT NOT NULL DEFAULT '',
    digest BLOB NOT NULL,
    card_digest TEXT NOT NULL,
    card_number INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    seen_at INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    change INTEGER NOT NULL);
CREATE UNIQUE INDEX entries_by_place ON entries (place);
CREATE UNIQUE INDEX entries_by_change ON entries (change);
CREATE UNIQUE INDEX entries_listed ON entries (identifier) WHERE standing = 'listed';
CREATE INDEX entries_by_identifier ON entries (identifier);
CREATE INDEX entries_by_source ON entries (source, standing);
CREATE INDEX entries_visible ON entries (standing, is_public);
CREATE INDEX entries_by_name ON entries (standing, name, key);
CREATE INDEX entries_by_publisher ON entries (standing, publisher, key);
CREATE INDEX entries_by_created ON entries (standing, created_at, key);
CREATE INDEX entries_by_updated ON entries (standing, updated_at, key);

-- What decides on who sees an entry, in few bytes: searches look at many.
CREATE TABLE visibility (
    key INTEGER PRIMARY KEY, standing TEXT NOT NULL, is_public INTEGER NOT NULL);

-- What was put, without the card, as JSON.
CREATE TABLE documents (entry_key INTEGER PRIMARY KEY, document BLOB NOT NULL);

CREATE TABLE card_versions (
    entry_key INTEGER NOT NULL,
    number INTEGER NOT NULL,
    digest TEXT NOT NULL,
    version TEXT NOT NULL,
    seen_at INTEGER NOT NULL,
    difference BLOB NOT NULL,
    card BLOB NOT NULL,
    PRIMARY KEY (entry_key, number)) WITHOUT ROWID;

CREATE TABLE audiences (
    token TEXT NOT NULL,
    entry_key INTEGER NOT NULL,
    PRIMARY KEY (entry_key, token)) WITHOUT ROWID;

-- A value of a field path. id is the digest of the path and the normalized value; entries is how
-- many have it. number and instant are what the value says, if it is a number or a time.
CREATE TABLE terms (
    id INTEGER PRIMARY KEY,
    field TEXT NOT NULL,
    value TEXT NOT NULL,
    normalized TEXT NOT NULL,
    number REAL,
    instant INTEGER,
    entries INTEGER NOT NULL);
CREATE INDEX terms_by_field ON terms (field);
CREATE INDEX terms_by_number ON terms (field, number) WHERE number IS NOT NULL;
CREATE INDEX terms_by_instant ON terms (field, instant) WHERE instant IS NOT NULL;

CREATE TABLE entry_terms (
    term_id INTEGER NOT NULL,
    entry_key INTEGER NOT NULL,
    PRIMARY KEY (term_id, entry_key)) WITHOUT ROWID;
CREATE INDEX entry_terms_by_entry ON entry_terms (entry_key, term_id);

-- The words of the texts by weight, as index/words.py makes them; and in how many entries each is.
CREATE VIRTUAL TABLE entry_words USING fts5 (
    a, b, c, d, tokenize = "unicode61 remove_diacritics 0 categories 'L* N* M* Co'");
CREATE TABLE words (word TEXT PRIMARY KEY, entries INTEGER NOT NULL) WITHOUT ROWID;

CREATE TABLE sources (
    url TEXT PRIMARY KEY,
    kind TEXT NOT NULL,
    state TEXT NOT NULL,
    due_at INTEGER NOT NULL,
    claimed_until INTEGER NOT NULL DEFAULT 0,
    claimed_by TEXT NOT NULL DEFAULT '',
    source BLOB NOT NULL) WITHOUT ROWID;
CREATE INDEX sources_by_due ON sources (due_at);
CREATE INDEX sources_by_state ON sources (state, url);

-- When each listed A2A entry is probed next; a claim moves it to the end of its lease.
CREATE TABLE probes (entry_key INTEGER PRIMARY KEY, due_at INTEGER NOT NULL);
CREATE INDEX probes_by_due ON probes (due_at);

CREATE TABLE observations (
    entry_key INTEGER PRIMARY KEY,
    observed BLOB NOT NULL,
    liveness TEXT NOT NULL,
    last_beat INTEGER);
CREATE INDEX observations_by_beat ON observations (last_beat)
    WHERE liveness IN ('alive', 'suspect');

CREATE TABLE challenges (
    domain TEXT NOT NULL,
    owner TEXT NOT NULL,
    token TEXT NOT NULL,
    expires_at INTEGER NOT NULL,
    PRIMARY KEY (domain, owner)) WITHOUT ROWID;
CREATE INDEX challenges_by_end ON challenges (expires_at);

CREATE TABLE claims (
    owner TEXT NOT NULL,
    domain TEXT NOT NULL,
    method TEXT NOT NULL,
    expires_at INTEGER NOT NULL,
    PRIMARY KEY (owner, domain)) WITHOUT ROWID;
