"""A stream that is shown outlives the server that it comes from."""

import os
import re
import signal

import pytest

from tests.kit.processes import Running, free_port

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")

AGENT = '''
import asyncio
from parley import Agent, Turn

agent = Agent("Counting agent")

@agent.skill
async def count(turn: Turn):
    """Counts."""
    for number in range(30):
        await asyncio.sleep(0.03)
        yield f"{number} "
'''


def test_a_killed_server_costs_a_streaming_command_nothing(tmp_path):
    """A2ACLI_TASK_POLL_004 and A2ACLI_TASK_SUBSCRIBE_002, where the agent can resume streams"""
    (tmp_path / "counting.py").write_text(AGENT)
    port = str(free_port())
    serve = ["serve", "counting.py", "--port", port]
    send = ["send", "go", "--stream", "-o", "json", "--poll-interval", "100ms"]
    with Running(serve, tmp_path) as first:
        first.until("Ctrl-C stops the server")
        with Running([*send, "-a", f"http://127.0.0.1:{port}"], tmp_path) as ran:
            ran.until('"text":"9 "')
            first.end(signal.SIGKILL)
            with Running(serve, tmp_path) as second:
                second.until("Ctrl-C stops the server")
                assert ran.end() == 0
            lines = ran.stdout.splitlines()
    assert "TASK_STATE_COMPLETED" in lines[-1]
    said = [line for line in lines if '"artifactUpdate"' in line]
    # What the dead server streamed stays; what its successor streams replaces it, in full.
    begun = [place for place, line in enumerate(said) if '"append":true' not in line]
    assert len(begun) == 2
    numbers = [re.search(r'"text":"([\d ]+)"', line) for line in said[begun[1] :]]
    assert "".join(found[1] for found in numbers if found) == "".join(f"{n} " for n in range(30))
