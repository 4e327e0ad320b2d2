"""What the commands say of cards that are not as they should be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.client.scripted_server import card

from .scripted import Answer, task

NOWHERE = "http://127.0.0.1:9"


def written(folder: Path, members: dict[str, Any]) -> str:
    path = folder / "card.json"
    path.write_text(json.dumps(members))
    return str(path)


def test_credentials_that_a_card_wants_and_does_not_describe_are_told(parley, tmp_path):
    secured = {"securitySchemes": {"k": {"type": "hmac"}}, "security": [{"k": []}]}
    path = written(tmp_path, {**card(NOWHERE), **secured})
    ran = parley("send", "-a", path, "hello")
    assert "warning: the agent wants the scheme 'k'" in ran.stderr
    assert "it is called without credentials" in ran.stderr
    ran = parley("send", "-a", path, "--svc-param", "X-Own: secret", "hello")
    assert "without credentials" not in ran.stderr


@pytest.mark.parametrize("version", ["0.2.0", "0.2.5", "0.2.6"])
def test_an_agent_of_0_2_is_called_as_one_of_0_3(parley, agent, version):
    del agent.card["supportedInterfaces"]
    agent.card.update(url=f"{agent.url}/rpc", protocolVersion=version)
    ran = parley("task", "get", "task-1", "-a", agent.url)
    assert ran.status == 1
    hint = "call it in a version that it offers: --a2a-version 0.3"
    assert hint in ran.stderr
    agent.says("tasks/get", Answer(result={**task(), "kind": "task", "status": OLD_STATUS}))
    ran = parley("task", "get", "task-1", "-a", agent.url, *hint.split()[-2:])
    assert (ran.status, agent.asked[-1].method) == (0, "tasks/get")


def test_the_hint_for_a_version_leads_to_one_that_is_offered(parley, agent):
    agent.card["supportedInterfaces"] = [agent.interface(protocolVersion="1.0")]
    ran = parley("task", "get", "task-1", "-a", agent.url, "--a2a-version", "0.3")
    assert "--a2a-version 1.0" in ran.stderr
    agent.card["supportedInterfaces"] = [agent.interface(protocolVersion="0.1.0")]
    ran = parley("task", "get", "task-1", "-a", agent.url)
    assert "parley speaks 1.0 and 0.3; the agent offers neither" in ran.stderr


OLD_STATUS = {"state": "completed"}
