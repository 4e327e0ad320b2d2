"""``parley audit``: shows, exports, verifies and prunes the audit log."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from parley.cli.commands import audit as audit_commands
from parley.cli.commands.audit import AuditListing, show
from parley.cli.output.streams import Output
from parley.host.store_urls import open_admin
from parley.store.admin.admin import SchemaStatus
from parley.store.audit.reading import AuditReading
from parley.store.audit.trail import AuditEntry

posix = pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")

STORE = ("--store", "sqlite:///shop.db")


@pytest.fixture
def shop(parley, tmp_path):
    """A store with some audit records."""
    assert parley("store", "migrate", *STORE).status == 0
    for owner in ("ada", "bob"):
        assert parley("keys", "create", "--owner", owner, *STORE).status == 0
    return tmp_path / "shop.db"


def kinds(ran) -> list[str]:
    return [line["kind"] for line in ran.lines]


@pytest.mark.slow
def test_acts_of_commands_are_recorded_with_the_user(parley, shop):
    created = parley("keys", "create", "--owner", "eve", *STORE)
    id, key = created.field("Id"), created.field("Key")
    assert parley("keys", "rotate", id, "--overlap", "1d", *STORE).status == 0
    assert parley("keys", "revoke", id, *STORE).status == 0
    assert parley("store", "prune", "--ended-before", "1d", *STORE).status == 0
    assert parley("store", "prune", "--ended-before", "1d", "--dry-run", *STORE).status == 0
    assert parley("store", "export", "all.jsonl", *STORE).status == 0
    assert parley("store", "import", "all.jsonl", *STORE).status == 0
    assert parley("store", "webhooks", "resume", "--all", *STORE).status == 0
    assert parley("store", "migrate", "--issuer", "https://id.example", *STORE).status == 0
    ran = parley("audit", "--json", *STORE)
    assert kinds(ran) == [
        "store.migrated",
        *["key.created"] * 3,
        "key.rotated",
        "key.revoked",
        "store.pruned",
        "store.exported",
        "store.imported",
        "webhooks.resumed",
        "store.owners_assigned",
    ]
    assert all(line["issuer"] == "os" and "@" in line["actor"] for line in ran.lines)
    assert ran.lines[4]["details"]["replaces"] == ran.lines[5]["subject"] == id
    assert key.rpartition("_")[2] not in ran.stdout
    assert parley("audit", "verify", *STORE).status == 0


@pytest.mark.slow
def test_what_only_reads_records_nothing(parley, shop):
    for command in (("keys", "list"), ("store", "status"), ("audit",), ("audit", "verify")):
        assert parley(*command, *STORE).status == 0
    assert len(parley("audit", "--json", *STORE).lines) == 3


@pytest.mark.slow
def test_a_table_shows_entries_one_a_line(parley, shop):
    entry = AuditEntry(kind="auth.failed", actor="two\nlines \x1b[2J", details={"a": "\x9b\n"})
    open_admin("sqlite:///shop.db").append_audit([entry])
    ran = parley("audit", *STORE)
    head, *rows = ran.stdout.splitlines()
    assert head.split() == ["TIME", "KIND", "WHO", "ABOUT", "DETAILS"]
    assert len(rows) == 4
    assert "\x1b" not in ran.stdout
    assert parley("audit", "list", *STORE).stdout == ran.stdout


@pytest.mark.slow
def test_an_export_is_verified_by_anybody(parley, shop):
    ran = parley("audit", "export", "audit.jsonl", *STORE)
    anchor = ran.field("Anchor")
    lines = Path("audit.jsonl").read_text("utf-8").splitlines()
    previous = "0" * 64
    for text in lines:
        line = json.loads(text)
        own = line.pop("hash")
        canonical = json.dumps(line, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        assert hashlib.sha256(canonical.encode()).hexdigest() == own
        assert line["previous"] == previous
        previous = own
    assert anchor == f"{len(lines)}:{previous}"
    assert Path("audit.jsonl").stat().st_mode & 0o077 == 0
    assert parley("audit", "verify", "audit.jsonl", "--anchor", anchor).status == 0
    assert parley("audit", "export", "audit.jsonl", *STORE).status == 2  # the file exists already
    piped = parley("audit", "export", "-", *STORE)
    assert piped.stdout.splitlines() == lines
    assert anchor in piped.stderr
    Path("audit.jsonl").write_text("\n".join([lines[0], lines[2]]) + "\n")
    ran = parley("audit", "verify", "audit.jsonl")
    assert (ran.status, ran.field("Intact")) == (1, "no")
    assert "line 2" in ran.field("Problem")


@pytest.mark.slow
def test_what_was_changed_is_named(parley, shop):
    anchor = parley("audit", "verify", *STORE).field("Anchor")
    Path("anchor.txt").write_text(f"Anchor: {anchor}\n")
    connection = sqlite3.connect(shop)
    with connection:
        connection.execute("DROP TRIGGER audit_unchanged")
        connection.execute("UPDATE audit SET outcome = 'failed' WHERE seq = 2")
    ran = parley("audit", "verify", "-o", "json", *STORE)
    assert ran.status == 1
    assert ran.document["problems"][0]["line"] == 2
    with connection:
        connection.execute("UPDATE audit SET outcome = 'done' WHERE seq = 2")
        connection.execute("DROP TRIGGER audit_kept")
        connection.execute("DELETE FROM audit WHERE seq = 3")
    connection.close()
    assert parley("audit", "verify", *STORE).status == 0
    ran = parley("audit", "verify", "--anchor", "anchor.txt", *STORE)
    assert (ran.status, "the end is missing" in ran.field("Problem")) == (1, True)
    assert parley("audit", "verify", "--anchor", "nothing", *STORE).status == 2


@pytest.mark.slow
def test_a_prune_is_an_act_too(parley, shop):
    anchor = parley("audit", "verify", *STORE).field("Anchor")
    assert parley("audit", "prune", *STORE).status == 2
    assert parley("audit", "prune", "--before", "1d", *STORE).field("Removed") == "0 lines"
    ran = parley("audit", "prune", "--before", "2100-01-01", *STORE)
    assert ran.field("Removed") == "3 lines"
    [line] = parley("audit", "--json", *STORE).lines
    assert (line["kind"], line["issuer"], line["seq"]) == ("audit.pruned", "os", 4)
    assert parley("audit", "verify", "--anchor", anchor, *STORE).status == 0


@pytest.mark.slow
def test_an_address_is_no_file_to_export_to(parley, shop):
    ran = parley("audit", "export", "syslog://user:s3cret@host", *STORE)
    assert (ran.status, "parley.audit.lines" in ran.stderr) == (2, True)
    assert "s3cret" not in ran.stderr


class Moments:
    """A store whose audit entries become visible in steps: one step per read."""

    name = "moments"

    def __init__(self, *facts: list[AuditEntry]) -> None:
        self.left = list(facts)
        self.seen: list[AuditEntry] = []
        self.time = 1_800_000_000_000

    def now(self) -> int:
        self.time += 40_000
        return self.time

    def schema(self) -> SchemaStatus:
        return SchemaStatus(version=1, missing=())

    @contextmanager
    def audit(self):
        self.seen += self.left.pop(0) if self.left else []

        def rows(name, values):
            return iter(())

        reading = AuditReading(rows)
        reading.facts = lambda which, content: (e for e in self.seen if which.selects(e))
        yield reading


def test_what_is_added_while_the_first_entries_are_printed_is_followed(monkeypatch, capsys):
    monkeypatch.setattr(audit_commands, "POLL_SECONDS", 0)
    start = 1_800_000_000_000
    facts = {
        name: AuditEntry(kind="a", id=name, at=start + at)
        for name, at in (("old", 0), ("left", 20_000), ("shown", 30_000), ("late", 10_000))
    }
    admin = Moments([facts["old"], facts["left"], facts["shown"]], [facts["late"]])
    show(
        Output(is_json=True),
        admin,
        AuditListing(until="2027-01-15T08:02:00Z", limit=1, follow=True),
    )
    printed = [json.loads(line)["id"] for line in capsys.readouterr().out.splitlines()]
    assert printed == ["shown", "late"]


APPENDING = """
import asyncio, sys
from parley.host.store_urls import open_store
from parley.store.audit.trail import AuditEntry

async def main():
    store = open_store(sys.argv[1])
    await store.open(lambda records: None)
    n = 0
    while True:
        await store.append_audit([AuditEntry(kind="n", subject=str(n + i)) for i in range(3)])
        n += 3
        print(n, flush=True)

asyncio.run(main())
"""


@pytest.mark.slow
@posix
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.service)])
def test_a_kill_breaks_no_chain_and_loses_nothing_that_was_acknowledged(
    parley, tmp_path, kind, request
):
    url = f"sqlite:///{tmp_path}/shop.db"
    if kind == "postgres":
        url = request.getfixturevalue("postgres_url")
    acknowledged = 0
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", APPENDING, url], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        last = int(process.stdout.readline())
        for _ in range(40):
            last = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        rest = process.communicate()[0].split()
        acknowledged += int(rest[-1]) if rest else last
    ran = parley("audit", "verify", "-o", "json", "--store", url)
    assert ran.status == 0, ran.stdout
    assert acknowledged <= ran.document["lines"] <= acknowledged + 9
    assert ran.document["lines"] % 3 == 0  # an append is all or nothing
