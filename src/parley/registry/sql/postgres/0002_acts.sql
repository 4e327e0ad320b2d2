-- oldest: 1
-- What callers and operators did, as a chain of hashes: lines are only ever added. Times are in ms.
CREATE TABLE {schema}.acts (
    seq bigint PRIMARY KEY,
    id text NOT NULL UNIQUE,
    at bigint NOT NULL,
    kind text COLLATE "C" NOT NULL,
    issuer text NOT NULL,
    actor text NOT NULL,
    client text NOT NULL,
    address text NOT NULL,
    agent text NOT NULL,
    tenant text NOT NULL,
    subject text NOT NULL,
    outcome text NOT NULL,
    details text NOT NULL,
    previous text NOT NULL,
    hash text NOT NULL);

CREATE FUNCTION {schema}.refuse_change_of_acts() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the audit is append-only';
END $$;

CREATE TRIGGER acts_unchanged BEFORE UPDATE OR DELETE ON {schema}.acts
FOR EACH ROW EXECUTE FUNCTION {schema}.refuse_change_of_acts();

-- The token that proved a claim, and when it is looked for again.
ALTER TABLE {schema}.claims ADD COLUMN token text NOT NULL DEFAULT '';
ALTER TABLE {schema}.claims ADD COLUMN due_at bigint NOT NULL DEFAULT 0;
CREATE INDEX claims_by_due ON {schema}.claims (due_at);
