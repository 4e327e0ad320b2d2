CREATE TABLE notes (id INTEGER PRIMARY KEY, author TEXT NOT NULL CHECK (author <> ''), body TEXT);
