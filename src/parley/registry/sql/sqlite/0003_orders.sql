-- Every order of a list has an index: a page is read without sorting all entries.
CREATE INDEX entries_in_order ON entries (standing, identifier, key);
CREATE INDEX entries_by_type ON entries (standing, type, key);
CREATE INDEX entries_by_version ON entries (standing, version, key);
