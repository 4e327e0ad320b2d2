"""``parley keys``: keys are created, listed, revoked and rotated, also while a server runs."""

from __future__ import annotations

import io
import json
import re
import signal
import sys
import urllib.error
import urllib.request

import pytest

from parley.security.credentials import PasswordHash
from parley.store.admin.sqlite import SqliteAdmin
from tests.kit.processes import Running

STORE = ("--store", "sqlite:///shop.db")
AGENT = """
import logging

from parley import Agent, Turn
from parley.security import ApiKey

in_query = ApiKey("query", "k", name="query", cache_seconds=1)
agent = Agent("Shop", security=ApiKey(cache_seconds=1).with_scopes("read") | in_query)

@agent.skill(replies="task")
async def whoami(turn: Turn) -> str:
    return turn.caller.id
"""


@pytest.fixture
def shop(tmp_path):
    """An empty store."""
    SqliteAdmin(tmp_path / "shop.db").migrate()
    return tmp_path / "shop.db"


def test_a_key_is_created_and_shown_once(parley, shop):
    ran = parley(
        *("keys", "create", "--owner", "ada", "--scope", "read", "--scope", "write"),
        *("--expires", "90d", "--label", "laptop", *STORE),
    )
    assert ran.status == 0
    key = ran.field("Key")
    assert re.fullmatch(r"parley_(?:[0-9a-z]{16})_[0-9A-Za-z]{49}", key)
    assert ran.field("Id") == key.split("_")[1]
    assert (ran.field("Owner"), ran.field("Scopes")) == ("ada", "read write")
    assert ran.field("State").startswith("valid until 2")
    assert "shown only once" in ran.field("Note")
    for output in ((), ("-o", "json")):
        listed = parley("keys", "list", *STORE, *output)
        assert ran.field("Id") in listed.stdout
        assert "laptop" in listed.stdout
        assert key.split("_")[2] not in listed.stdout + listed.stderr
    assert key.split("_")[2].encode() not in shop.read_bytes()


def test_the_results_are_documents_for_programs(parley, shop):
    made = parley("keys", "create", "--owner", "ada", *STORE, "-o", "json").document
    assert made["key"].startswith(f"parley_{made['id']}_")
    assert (made["store"], made["owner"], made["scopes"]) == (str(shop), "ada", [])
    assert (made["state"], "expiresAt" in made) == ("valid", False)
    parley("keys", "create", "--owner", "bob", "--scope", "read", *STORE)
    listed = parley("keys", "list", *STORE, "-o", "json").document
    assert [each["owner"] for each in listed["keys"]] == ["ada", "bob"]
    [bobs] = parley("keys", "list", "--owner", "bob", *STORE, "-o", "json").document["keys"]
    assert bobs["scopes"] == ["read"]
    assert "key" not in bobs
    revoked = parley("keys", "revoke", made["id"], *STORE, "-o", "json").document
    assert revoked["state"] == "revoked"
    assert revoked["revokedAt"].endswith("Z")
    assert parley("keys", "list", "--owner", "eve", *STORE).field("Keys") == "none"


def test_a_key_is_rotated_with_an_overlap(parley, shop):
    given = ("--owner", "ada", "--scope", "read", "--label", "ci", "--expires", "90d")
    old = parley("keys", "create", *given, *STORE, "-o", "json").document
    new = parley("keys", "rotate", old["id"], "--overlap", "7d", *STORE, "-o", "json").document
    assert new["key"] != old["key"]
    assert (new["owner"], new["scopes"], new["label"]) == ("ada", ["read"], "ci")
    assert new["replaces"]["id"] == old["id"]
    assert new["replaces"]["state"] == "valid"
    assert new["replaces"]["expiresAt"] < old["expiresAt"] <= new["expiresAt"]
    # A whole key works in place of its id.
    assert parley("keys", "revoke", new["key"], *STORE).field("Id") == new["id"]
    ran = parley("keys", "rotate", new["id"], *STORE)
    assert ran.status == 1
    assert "no longer valid" in ran.stderr
    assert "keys create --owner ada" in ran.stderr


@pytest.mark.slow
def test_a_password_is_hashed(parley, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("pass word\n"))
    ran = parley("keys", "hash-password")
    assert PasswordHash.of(ran.field("Hash")).matches("pass word")
    assert "pass word" not in ran.stdout
    monkeypatch.setattr(sys, "stdin", io.StringIO("x\n"))
    assert PasswordHash.of(parley("keys", "hash-password", "-o", "json").document["hash"])
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n"))
    assert parley("keys", "hash-password").status == 2


def address(said: str) -> str:
    found = re.search(r"address +(http://\S+)", said)
    assert found is not None
    return found[1]


def call(url: str, key: str, *, query: bool = False) -> str:
    """Return the response to a message, or the status of its rejection."""
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}
    request = urllib.request.Request(
        f"{url}/message:send" + (f"?k={key}" if query else ""),
        json.dumps({"message": message}).encode(),
        {"Content-Type": "application/json", "A2A-Version": "1.0"}
        | ({} if query else {"X-API-Key": key}),
    )
    try:
        with urllib.request.urlopen(request) as response:
            task = json.load(response)["task"]
            return task["artifacts"][0]["parts"][0]["text"]
    except urllib.error.HTTPError as error:
        shows_key = key.encode() in error.read()
        return "the key is shown" if shows_key else str(error.code)


@pytest.mark.slow
def test_keys_outlive_a_server_that_is_killed(parley, tmp_path):
    (tmp_path / "shop.py").write_text(AGENT)
    arguments = ["serve", "shop.py", "--port", "0", *STORE]
    with Running(arguments, tmp_path) as server:
        server.until("Ctrl-C stops the server")
        given = ("--owner", "ada", "--scope", "read", *STORE, "-o", "json")
        kept, gone = (parley("keys", "create", *given).document for _ in range(2))
        parley("keys", "revoke", gone["id"], *STORE)
        server.end(signal.SIGKILL)
    with Running(arguments, tmp_path) as server:
        url = address(server.until("Ctrl-C stops the server"))
        assert (call(url, kept["key"]), call(url, gone["key"])) == ("ada", "401")


def test_an_export_has_no_keys(parley, shop, tmp_path):
    made = parley("keys", "create", "--owner", "ada", *STORE, "-o", "json").document
    assert parley("store", "export", "all.jsonl", *STORE).status == 0
    text = (tmp_path / "all.jsonl").read_text()
    assert made["id"] not in text
    assert made["key"].split("_")[2] not in text
