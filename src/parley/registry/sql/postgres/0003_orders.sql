-- oldest: 1
-- Every order of a list has an index: a page is read without sorting all entries.
CREATE INDEX entries_in_order ON {schema}.entries (standing, identifier, key);
CREATE INDEX entries_by_type ON {schema}.entries (standing, type, key);
CREATE INDEX entries_by_version ON {schema}.entries (standing, version, key);
