"""What `make lint` says of dependencies: licences, advisories and the bill of materials."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from tests.house import dependencies


@pytest.fixture
def database() -> Iterator[str]:
    """An OSV database with an advisory about aiohttp, by its address."""

    class Database(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            fixed = {"events": [{"introduced": "0"}, {"fixed": "99.1"}]}
            package = asked["package"]
            advisory = {
                "id": "CVE-1-1",
                "summary": "x",
                "details": "x",
                "published": "2026-01-01T00:00:00Z",
                "affected": [{"package": package, "ranges": [{"type": "ECOSYSTEM"} | fixed]}],
            }
            answer = {"vulns": [advisory]} if package["name"] == "aiohttp" else {}
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Database) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}/v1/query"
        server.shutdown()
        serving.join()


@pytest.mark.parametrize(
    ("name", "expression", "allowed"),
    [
        ("x", "Apache-2.0", True),
        ("x", "GPL-3.0-only OR MIT", True),
        ("x", "GPL-3.0-only AND MIT", False),
        ("x", "(MIT OR GPL-2.0-only) AND AGPL-3.0-only", False),
        ("psycopg", "LGPL-3.0-only", True),
        ("x", "LGPL-3.0-only", False),
        ("x", "A licence of our own", False),
        ("x", "UNKNOWN", False),
    ],
)
def test_a_licence_is_allowed_if_a_user_can_choose_it(
    name: str, expression: str, allowed: bool
) -> None:
    assert dependencies.is_allowed(name, expression) is allowed


@pytest.mark.slow
def test_advisories_and_licences_fail_with_the_remedy(
    database: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["dependencies", "-s", "osv", "--osv-url", database])
    assert dependencies.main() == 1
    said = capsys.readouterr()
    (found,) = said.err.splitlines()
    assert found.startswith("aiohttp ")
    assert found.endswith("has CVE-1-1: upgrade it to 99.1")
    assert "checked for advisories, 1 found" in said.out
    sys.argv += ["--ignore-vuln", "CVE-1-1"]
    assert dependencies.main() == 0
    monkeypatch.setattr(dependencies, "ALLOWED", dependencies.ALLOWED - {"ISC"})
    assert dependencies.main() == 1
    wrong = capsys.readouterr().err
    assert "dnspython" in wrong
    assert "has the licence ISC: use another package" in wrong


@pytest.mark.slow
def test_a_database_without_an_answer_is_no_error() -> None:
    closed = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    closed.server_close()
    options = ("-s", "osv", "--osv-url", f"http://127.0.0.1:{closed.server_port}")
    found, summary = dependencies.advisories(["msgspec==0.20.0", "aiohttp==3.12.0"], *options)
    assert found == []
    assert summary.startswith("advisories were not checked: ")


def test_the_bill_of_materials_is_valid_and_has_no_time() -> None:
    needed = dependencies.needs(["parley-a2a[cli]"])
    packages = sorted(needed.keys() - {"", "parley-a2a"})
    needed[""] = needed["parley-a2a"]
    project = {"name": "parley-a2a", "license": "Apache-2.0"}
    licences = dict.fromkeys(packages, "MIT OR Apache-2.0")
    written = dependencies.bill(project, licences, needed)
    assert written == dependencies.bill(project, dict(reversed(licences.items())), needed)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(written) is None
    made = json.loads(written)
    assert "timestamp" not in made["metadata"]
    assert [part["name"] for part in made["components"]] == packages
    edges = {e["ref"].partition("==")[0]: e.get("dependsOn", []) for e in made["dependencies"]}
    assert "typer" in {each.partition("==")[0] for each in edges["parley-a2a"]}
    assert [each.partition("==")[0] for each in edges["markdown-it-py"]] == ["mdurl"]
