"""Web pages misuse credentials that a browser sends by itself: cookies, Basic, certificates."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.attacks.conftest import Vault
from tests.attacks.guards import COOKIE, PASSWORD, basic
from tests.kit.http import ask

pytestmark = pytest.mark.anyio

ELSEWHERE = "https://evil.example"
SIMPLE = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "")
"""Media types that a page may send to another site without a CORS preflight."""

MESSAGE = {"messageId": "m", "kind": "message", "role": "user"}
SENT = {"message": {**MESSAGE, "parts": [{"kind": "text", "text": "hi"}]}}
REQUESTS: tuple[tuple[str, Any], ...] = (
    ("/", {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": SENT}),
    ("/v1/message:send", SENT),
    ("/files", {"size": 3}),
)
LOGGED_IN = {"cookie": {"Cookie": f"sid={COOKIE}"}, "basic": dict(basic("ada", PASSWORD))}


@pytest.mark.parametrize("name", LOGGED_IN)
@pytest.mark.parametrize("media_type", SIMPLE)
async def test_a_page_elsewhere_cannot_use_the_credentials_of_a_browser(
    vaults: dict[str, Vault], name: str, media_type: str
) -> None:
    url, counts = vaults[name]
    before = counts.runs
    headers = {**LOGGED_IN[name], "Origin": ELSEWHERE}
    if media_type:
        headers["Content-Type"] = media_type
    for path, content in REQUESTS:
        answer = await ask(url, "POST", path, json.dumps(content).encode(), headers)
        assert answer.status == 415, path
        assert "access-control-allow-origin" not in answer.headers
        # The policy checks an uploaded file before its media type is checked.
        assert counts.runs - before == (path == "/files"), path


@pytest.mark.parametrize("name", LOGGED_IN)
async def test_a_page_elsewhere_is_not_allowed_more_and_reads_nothing(
    vaults: dict[str, Vault], name: str
) -> None:
    url, counts = vaults[name]
    before = counts.runs
    asks = {"Origin": ELSEWHERE, "Access-Control-Request-Method": "POST"}
    asks["Access-Control-Request-Headers"] = "content-type, authorization"
    for path, _ in REQUESTS:
        answer = await ask(url, "OPTIONS", path, headers=asks)
        assert "access-control-allow-credentials" not in answer.headers
        assert "access-control-allow-origin" not in answer.headers
    read = await ask(url, "GET", "/v1/tasks/any", headers={**LOGGED_IN[name], "Origin": ELSEWHERE})
    assert "access-control-allow-origin" not in read.headers
    assert counts.runs - before <= 1  # the policy is asked about the task, which does not exist
