"""Fixtures that run the command, in this process where that is enough."""

from __future__ import annotations

import json
import os
from sysconfig import get_path
from typing import Any, NamedTuple

import pytest

from parley.cli.app import run
from parley.cli.calls import agent_call
from parley.client.retry import Retry
from tests.cli.scripted import ScriptedAgent


class Ran(NamedTuple):
    """The exit status and the output of a command."""

    status: int
    stdout: str
    stderr: str

    @property
    def document(self) -> Any:
        """The one JSON document on stdout."""
        return json.loads(self.stdout)

    @property
    def lines(self) -> list[Any]:
        """The JSON lines on stdout."""
        return [json.loads(line) for line in self.stdout.splitlines()]

    @property
    def error(self) -> Any:
        """The error object on stdout."""
        return self.document["error"]

    def field(self, label: str) -> str:
        """Return the last value of a labelled field in the text on stdout."""
        found = [line for line in self.stdout.splitlines() if line.startswith(f"{label}: ")]
        assert found, f"no {label!r} in:\n{self.stdout}"
        return found[-1].partition(": ")[2]


@pytest.fixture
def parley(capsys, monkeypatch, tmp_path):
    """Run the command in an empty folder, without the settings of the user who runs the tests."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(agent_call, "RETRY", Retry(calls=1, streams=2, first=0.01, limit=0.01))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.setenv("PATH", os.pathsep.join([get_path("scripts"), os.environ["PATH"]]))
    monkeypatch.delenv("UV", raising=False)
    keys = ("PARLEY_SIGNING_KEYS", "PARLEY_SIGNING_KEYS_FILE")
    own = ("PARLEY_PUBLISHER", "PARLEY_NAMESPACE", "PARLEY_ENVELOPE_KEYS")
    for name in ("PARLEY_STORE", "PARLEY_BUS", "PARLEY_FILES", "PARLEY_AUDIT", *keys, *own):
        monkeypatch.delenv(name, raising=False)

    def call(*arguments: str) -> Ran:
        capsys.readouterr()
        status = run(list(arguments))
        captured = capsys.readouterr()
        return Ran(status, captured.out, captured.err)

    return call


@pytest.fixture
def agent():
    """A scripted agent."""
    scripted = ScriptedAgent()
    yield scripted
    scripted.close()
