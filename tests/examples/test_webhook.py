"""A receiver of push notifications, and the agent that sends them."""

from __future__ import annotations

import pytest

import parley
from parley.model.operations import AuthenticationInfo, TaskPushNotificationConfig
from tests.kit.servers import under_uvicorn
from tests.kit.waiting import until

pytestmark = pytest.mark.anyio


async def test_a_task_is_told_event_by_event_and_fetched_at_its_end(
    example, monkeypatch: pytest.MonkeyPatch, tmp_path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    agent = example("streaming_report").agent
    program = example("webhook")
    served = parley.asgi(agent, store="memory:", allow_private_webhooks=True)
    said = ""
    async with under_uvicorn(served) as url, under_uvicorn(program.app) as hook:
        monkeypatch.setattr(program, "AGENT", url)
        proof = AuthenticationInfo(scheme="HMAC-SHA256", credentials=program.SECRET)
        webhook = TaskPushNotificationConfig(url=f"{hook}/hook", authentication=proof)
        async with parley.connect(url) as remote:
            task = await remote.send("Tides", push=webhook)

        def is_over() -> bool:
            nonlocal said
            said += capsys.readouterr().out
            return " ended as " in said

        await until(is_over, 30)
    lines = said.splitlines()
    assert lines[0] == f"{task.id}: event 1"
    assert f"{task.id} ended as TASK_STATE_COMPLETED: " in said
    numbers = [int(line.rpartition(" ")[2]) for line in lines if ": event " in line]
    assert numbers == list(range(1, len(numbers) + 1))
