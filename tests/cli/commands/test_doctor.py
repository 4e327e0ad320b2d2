"""``parley doctor``: what is wrong is found, and the status says whether something is."""

import os
import re
import socket
import sqlite3
from pathlib import Path

import pytest

from parley.cli.settings.server import unknown_variables
from tests.kit.processes import Running, free_port

AGENT = "from parley import Agent\nagent = Agent('Echo')\n\n@agent.skill\n"
AGENT += "async def echo(text: str) -> str:\n    'Says it again.'\n    return text\n"
SOURCE = Path(__file__).parents[3] / "src" / "parley"


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in [each for each in os.environ if each.startswith(("PARLEY_", "A2ACLI_"))]:
        monkeypatch.delenv(name)


def found(parley, *words):
    ran = parley("doctor", "-o", "json", "--port", "0", *words)
    by = {}
    for each in ran.document["findings"]:
        by.setdefault(each["subject"], []).append(each)
    return ran.status, by


def test_a_machine_without_a_problem_passes(parley):
    status, by = found(parley)
    assert status == 0, by
    assert {"python", "packages", "variables", "port", "store", "keys", "egress"} <= by.keys()
    assert "Port: 0 is free" in parley("doctor", "--port", "0").stdout


def test_a_wrong_variable_an_old_store_and_open_keys_are_problems(parley, monkeypatch, tmp_path):
    monkeypatch.setenv("PARLEY_LIMTS", "60/minute")
    assert parley("store", "migrate", "--store", "sqlite:///t.db").status == 0
    with sqlite3.connect(tmp_path / "t.db") as file:
        file.execute("DELETE FROM schema_versions WHERE version > 1")
    (tmp_path / "keys.json").write_text("{}")
    (tmp_path / "keys.json").chmod(0o644)
    monkeypatch.setenv("PARLEY_SIGNING_KEYS_FILE", "keys.json")
    status, by = found(parley, "--store", "sqlite:///t.db")
    assert status == 1
    assert by["variables"][0]["remedy"] == "did you mean PARLEY_LIMITS?"
    problem = by["store"][-1]
    assert "has schema version 1, and this Parley needs" in problem["text"]
    assert problem["remedy"] == "parley store migrate --store sqlite:///t.db"
    assert "chmod 600" in by["keys"][0]["text"]


@pytest.mark.slow
def test_a_used_port_says_who_has_it_and_an_agent_is_asked(parley, tmp_path):
    (tmp_path / "agent.py").write_text(AGENT)
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.settimeout(0.01)
        status, by = found(parley, "--port", str(other.getsockname()[1]), "agent.py")
        assert (status, by["port"][0]["state"]) == (1, "problem")
        assert by["agent"][0]["text"] == "Echo has 1 skills"
    port = str(free_port())
    with Running(["serve", "agent.py", "--port", port, "--store", "memory:"], tmp_path) as server:
        server.until("Ctrl-C stops")
        status, by = found(parley, "--port", port, f"http://127.0.0.1:{port}")
        assert status == 0, by
        assert by["port"][0]["text"] == f"{port} is used by a server of the agent Echo"
        assert by["agent"][0]["text"].startswith("Echo 0.1.0 answers in 1.0")
        assert by["clock"][0]["state"] == "ok"
    status, by = found(parley, "http://nowhere.invalid")
    assert (status, by["agent"][0]["state"]) == (1, "problem")


def test_every_variable_that_the_code_names_is_known():
    for path in SOURCE.rglob("*.py"):
        named = re.findall(r"\"((?:PARLEY|A2ACLI)_(?!ERR_)[A-Z_]*[A-Z])\"", path.read_text("utf-8"))
        assert not unknown_variables(dict.fromkeys(named, "")), path
