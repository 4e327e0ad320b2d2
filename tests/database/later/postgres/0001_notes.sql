-- oldest: 1
CREATE TABLE {schema}.notes (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, author text NOT NULL CHECK (author <> ''),
    body text);
