-- Usage by day (days of UTC since 1970), and what was taken of the amounts of limits, by slot.
CREATE TABLE usage (
    day          INTEGER NOT NULL,
    agent        TEXT    NOT NULL,
    tenant       TEXT    NOT NULL,
    caller       TEXT    NOT NULL,
    skill        TEXT    NOT NULL,
    requests     INTEGER NOT NULL,
    refusals     INTEGER NOT NULL,
    messages     INTEGER NOT NULL,
    tasks        INTEGER NOT NULL,
    output_bytes INTEGER NOT NULL,
    run_ms       INTEGER NOT NULL,
    PRIMARY KEY (day, agent, tenant, caller, skill)
) WITHOUT ROWID;

CREATE TABLE quota_slots (
    name    TEXT    NOT NULL,
    slot    INTEGER NOT NULL,
    taken   INTEGER NOT NULL,
    ends_at INTEGER NOT NULL,
    PRIMARY KEY (name, slot)
) WITHOUT ROWID;
