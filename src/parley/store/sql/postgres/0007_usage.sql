-- oldest: 2
-- Usage by day (days of UTC since 1970), and what was taken of the amounts of limits, by slot.
CREATE TABLE {schema}.usage (
    day          integer NOT NULL,
    agent        text COLLATE "C" NOT NULL,
    tenant       text COLLATE "C" NOT NULL,
    caller       text COLLATE "C" NOT NULL,
    skill        text COLLATE "C" NOT NULL,
    requests     bigint NOT NULL,
    refusals     bigint NOT NULL,
    messages     bigint NOT NULL,
    tasks        bigint NOT NULL,
    output_bytes bigint NOT NULL,
    run_ms       bigint NOT NULL,
    PRIMARY KEY (day, agent, tenant, caller, skill)
);

CREATE TABLE {schema}.quota_slots (
    slot    bigint NOT NULL,
    taken   bigint NOT NULL,
    ends_at bigint NOT NULL,
    name    text COLLATE "C" NOT NULL,
    PRIMARY KEY (name, slot)
);
