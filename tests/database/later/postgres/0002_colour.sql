-- oldest: 2
ALTER TABLE {schema}.notes ADD COLUMN colour text NOT NULL DEFAULT 'white';
