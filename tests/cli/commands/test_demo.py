"""``parley demo``: each feature once, for a pipe and for a terminal."""

import os
import re
import signal

import pytest

from tests.kit.processes import Running

posix = pytest.mark.skipif(os.name != "posix", reason="signals and terminals as POSIX has them")


@pytest.mark.slow
@posix
def test_a_server_to_practise_with_does_what_a_message_says(parley, tmp_path):
    """A2ACLI_DEMO_SERVER_001"""
    with Running(["demo-server", "--port", "0"], tmp_path) as demo:
        said = demo.until("Ctrl-C stops it.")
        url = re.search(r"Practice agent: (http://\S+)", said)[1]
        assert f" send {url} Hello\n" in said
        assert "Text: You said: Hello" in parley("send", url, "Hello").stdout
        assert parley("send", url, "task").field("State") == "TASK_STATE_COMPLETED"
        streamed = parley("send", url, "stream", "--stream")
        assert "Piece 1. Piece 2. Piece 3. Piece 4. Piece 5." in streamed.stdout
        assert parley("send", url, "file").field("File").startswith("hello.txt (text/plain")
        asked = parley("send", url, "ask")
        assert asked.field("State") == "TASK_STATE_INPUT_REQUIRED"
        answered = parley("send", url, "blue", "--task-id", asked.field("Task"))
        assert "You like blue." in answered.stdout
        assert parley("send", url, "fail").field("State") == "TASK_STATE_FAILED"
        assert parley("send", url, "reject").field("State") == "TASK_STATE_REJECTED"
        slow = parley("send", url, "slow", "--async").field("Task")
        assert parley("task", "cancel", url, slow).field("State") == "TASK_STATE_CANCELED"
        checks = ("--only", "VER", "--only", "MSG-33")
        tried = parley("conformance", "server", url, "--task", "task", *checks)
        assert (tried.status, "conforms: " in tried.stdout) == (0, True), tried.stdout
        assert demo.end(signal.SIGINT) == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@posix
def test_a_terminal_gets_colour_and_an_artifact_that_grows_in_place(tmp_path):
    import pty
    import subprocess
    import sys

    ours, theirs = pty.openpty()
    demo = subprocess.Popen(
        [sys.executable, "-m", "parley.cli", "demo", "--once"],
        cwd=tmp_path,
        env=os.environ | {"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"},
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.STDOUT,
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # Linux reports a closed terminal this way
            break
        if not piece:
            break
        shown += piece
    os.close(ours)
    assert demo.wait(15) == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    assert b"\x1b[1m" in shown
    assert b"\x1b[1A" in shown  # the cursor moves up, and the frame is drawn again
    assert "● completed" in text
    assert "▀▀▀" in text
    assert "Traceback" not in text
