"""What the commands say of cards that are not as they should be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.client.scripted_server import card

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
