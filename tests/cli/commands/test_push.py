"""``parley push listen`` prints the requests to a webhook, and the reason for each rejection."""

from __future__ import annotations

import re
import signal
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.kit.processes import Running
from tests.push.receiving.delivering import update


def post(url: str, body: bytes, headers: dict[str, str]) -> int:
    headers = headers | {"Content-Type": "application/a2a+json"}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def listening(*words: str, folder: Path, **environment: str) -> Running:
    return Running(["push", "listen", *words], folder, **environment)


@pytest.mark.slow
def test_it_prints_what_arrives_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    """A2ACLI_PUSH_002"""
    with listening("--port", "0", "--path", "/a2a", folder=tmp_path) as command:
        command.until("stop with Ctrl-C")
        url = re.search(r"Listening: (\S+)", command.until("/a2a\n"))
        assert url is not None
        assert url[1].endswith("/a2a")
        assert "nothing is verified" in command.stderr
        assert post(url[1], update("t1", "hello"), {"webhook-id": "t1/p/1"}) == 200
        assert post(url[1], update("t1", "hello"), {"webhook-id": "t1/p/1"}) == 200
        command.until("hello")
        assert post(url[1], b"{}", {}) == 400
        command.until("rejected with 400")
        assert post(url[1].removesuffix("/a2a"), update(), {}) == 404
        if sys.platform != "win32":
            assert command.end(signal.SIGINT) == 0
            assert "Traceback" not in command.stderr
    assert command.stdout.count("Notification: t1/p/1 (not verified)") == 1
    assert "Task: t1\nContext: c1\nState: TASK_STATE_WORKING\nStatus: hello\n" in command.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--path", "a2a"), "--path must begin with a slash"),
        (("--audience", "https://x"), "needs --issuer"),
        (("--issuer", "https://x", "--port", "0"), "needs --audience"),
        (("--issuer", "http://example.com"), "https"),
        (("--secret", "short"), "24 bytes or more"),
    ],
)
def test_wrong_usage_is_said_at_once(parley, words: tuple[str, ...], says: str) -> None:
    ran = parley("push", "listen", *words)
    assert ran.status == 2
    assert says in ran.stderr
    assert "short" not in ran.stderr.replace(says, "")
