-- oldest: 4
-- Searches are answered in the process, which follows the changes of entries.
DROP INDEX {schema}.entries_visible;
DROP INDEX {schema}.entries_by_name;
DROP INDEX {schema}.entries_by_publisher;
DROP INDEX {schema}.entries_by_created;
DROP INDEX {schema}.entries_in_order;
DROP INDEX {schema}.entries_by_type;
DROP INDEX {schema}.entries_by_version;
DROP TABLE {schema}.visibility;
DROP TABLE {schema}.audiences;
DROP TABLE {schema}.entry_terms;
DROP TABLE {schema}.terms;
DROP TABLE {schema}.entry_words;
DROP TABLE {schema}.words;
ALTER TABLE {schema}.entries DROP COLUMN publisher;
ALTER TABLE {schema}.entries DROP COLUMN name;
ALTER TABLE {schema}.entries DROP COLUMN type;
ALTER TABLE {schema}.entries DROP COLUMN version;
ALTER TABLE {schema}.entries DROP COLUMN is_public;
DELETE FROM {schema}.counters WHERE name = 'entries';
