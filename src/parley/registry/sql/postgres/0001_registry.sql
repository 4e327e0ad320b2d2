-- oldest: 1
-- Entries and how they are found, sources, health, proofs of domains. Times are in ms since 1970.
-- Texts that are ordered or looked up are compared by their bytes, as SQLite does.

-- Numbers that are handed out: "change" for every change of an entry, "key" for every new entry;
-- and "entries", how many there are. Whoever writes entries locks the first, so that changes are
-- committed in the order of their numbers.
CREATE TABLE {schema}.counters (name text COLLATE "C" PRIMARY KEY, value bigint NOT NULL)
    WITH (fillfactor = 20);
INSERT INTO {schema}.counters VALUES ('change', 0), ('key', 0), ('entries', 0);

-- place is the digest of identifier and source. name is what display names are ordered by.
-- authority counts from the strongest, 0. decided is the standing that an operator chose, and
-- decided_card the card that was there then. card_number is that of card_versions, 0 for none.
CREATE TABLE {schema}.entries (
    key bigint PRIMARY KEY,
    place bytea NOT NULL,
    identifier text COLLATE "C" NOT NULL,
    source text COLLATE "C" NOT NULL,
    publisher text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    type text COLLATE "C" NOT NULL,
    version text COLLATE "C" NOT NULL,
    authority integer NOT NULL,
    standing text COLLATE "C" NOT NULL,
    reason text NOT NULL,
    trust text NOT NULL,
    owner text NOT NULL,
    is_public boolean NOT NULL,
    is_probed boolean NOT NULL,
    decided text NOT NULL DEFAULT '',
    decided_reason text NOT NULL DEFAULT '',
    decided_by text NOT NULL DEFAULT '',
    decided_at bigint,
    decided_card text NOT NULL DEFAULT '',
    digest bytea NOT NULL,
    card_digest text NOT NULL,
    card_number integer NOT NULL,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    seen_at bigint NOT NULL,
    revision integer NOT NULL,
    change bigint NOT NULL) WITH (fillfactor = 80);
CREATE UNIQUE INDEX entries_by_place ON {schema}.entries (place);
CREATE UNIQUE INDEX entries_by_change ON {schema}.entries (change);
CREATE UNIQUE INDEX entries_listed ON {schema}.entries (identifier) WHERE standing = 'listed';
CREATE INDEX entries_by_identifier ON {schema}.entries (identifier);
CREATE INDEX entries_by_source ON {schema}.entries (source, standing);
CREATE INDEX entries_visible ON {schema}.entries (standing, is_public);
CREATE INDEX entries_by_name ON {schema}.entries (standing, name, key);
CREATE INDEX entries_by_publisher ON {schema}.entries (standing, publisher, key);
CREATE INDEX entries_by_created ON {schema}.entries (standing, created_at, key);
CREATE INDEX entries_by_updated ON {schema}.entries (standing, updated_at, key);

-- What decides on who sees an entry, in few bytes: facets look at many.
CREATE TABLE {schema}.visibility (
    key bigint PRIMARY KEY,
    standing text COLLATE "C" NOT NULL,
    is_public boolean NOT NULL) WITH (fillfactor = 80);

-- What was put, without the card, as JSON.
CREATE TABLE {schema}.documents (entry_key bigint PRIMARY KEY, document bytea NOT NULL);

CREATE TABLE {schema}.card_versions (
    entry_key bigint NOT NULL,
    number integer NOT NULL,
    digest text NOT NULL,
    version text NOT NULL,
    seen_at bigint NOT NULL,
    difference bytea NOT NULL,
    card bytea NOT NULL,
    PRIMARY KEY (entry_key, number));

CREATE TABLE {schema}.audiences (
    token text COLLATE "C" NOT NULL,
    entry_key bigint NOT NULL,
    PRIMARY KEY (entry_key, token));

-- A value of a field path. id is the digest of the path and the normalized value; entries is how
-- many have it. number and instant are what the value says, if it is a number or a time.
CREATE TABLE {schema}.terms (
    id bigint PRIMARY KEY,
    field text COLLATE "C" NOT NULL,
    value text COLLATE "C" NOT NULL,
    normalized text COLLATE "C" NOT NULL,
    number double precision,
    instant bigint,
    entries bigint NOT NULL) WITH (fillfactor = 70);
CREATE INDEX terms_by_field ON {schema}.terms (field);
CREATE INDEX terms_by_number ON {schema}.terms (field, number) WHERE number IS NOT NULL;
CREATE INDEX terms_by_instant ON {schema}.terms (field, instant) WHERE instant IS NOT NULL;

CREATE TABLE {schema}.entry_terms (
    term_id bigint NOT NULL,
    entry_key bigint NOT NULL,
    PRIMARY KEY (term_id, entry_key));
CREATE INDEX entry_terms_by_entry ON {schema}.entry_terms (entry_key, term_id);

-- The words of the texts by weight, as index/words.py makes them; and in how many entries each is.
-- Those of names are there once more, with = before them: the index knows no weights.
-- standing and is_public are those of entries: a search looks at no other table for them. The
-- index is always complete: a list of pending words would have to be read by every search.
CREATE TABLE {schema}.entry_words (
    key bigint PRIMARY KEY,
    standing text COLLATE "C" NOT NULL,
    is_public boolean NOT NULL,
    words tsvector NOT NULL) WITH (fillfactor = 80);
CREATE INDEX entry_words_by_word ON {schema}.entry_words USING gin (words)
    WITH (fastupdate = off);
CREATE TABLE {schema}.words (word text COLLATE "C" PRIMARY KEY, entries bigint NOT NULL)
    WITH (fillfactor = 70);

CREATE TABLE {schema}.sources (
    url text COLLATE "C" PRIMARY KEY,
    kind text NOT NULL,
    state text COLLATE "C" NOT NULL,
    due_at bigint NOT NULL,
    claimed_until bigint NOT NULL DEFAULT 0,
    claimed_by text NOT NULL DEFAULT '',
    source bytea NOT NULL);
CREATE INDEX sources_by_due ON {schema}.sources (due_at);
CREATE INDEX sources_by_state ON {schema}.sources (state, url);

-- When each listed A2A entry is probed next; a claim moves it to the end of its lease.
CREATE TABLE {schema}.probes (entry_key bigint PRIMARY KEY, due_at bigint NOT NULL);
CREATE INDEX probes_by_due ON {schema}.probes (due_at);

CREATE TABLE {schema}.observations (
    entry_key bigint PRIMARY KEY,
    observed bytea NOT NULL,
    liveness text NOT NULL,
    last_beat bigint);
CREATE INDEX observations_by_beat ON {schema}.observations (last_beat)
    WHERE liveness IN ('alive', 'suspect');

CREATE TABLE {schema}.challenges (
    domain text NOT NULL,
    owner text NOT NULL,
    token text NOT NULL,
    expires_at bigint NOT NULL,
    PRIMARY KEY (domain, owner));
CREATE INDEX challenges_by_end ON {schema}.challenges (expires_at);

CREATE TABLE {schema}.claims (
    owner text NOT NULL,
    domain text NOT NULL,
    method text NOT NULL,
    expires_at bigint NOT NULL,
    PRIMARY KEY (owner, domain));
