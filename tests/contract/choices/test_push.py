"""Webhook deliveries, and what responses disclose about webhooks."""

from __future__ import annotations

import pytest

from parley.store.protocols.webhooks import PushState
from tests.contract.choices.conftest import only
from tests.contract.choices.wire import Wire
from tests.kit.webhooks import webhook
from tests.push.pushing import gated, pushing

pytestmark = pytest.mark.anyio


def pushed_with(wire: Wire, url: str, **more: str) -> dict[str, object]:
    """The configuration of a message that registers a webhook."""
    config = wire.config(url, **more)
    if not wire.is_old:
        return {"taskPushNotificationConfig": config}
    return {"pushNotification" if wire.is_proto else "pushNotificationConfig": config}


# -- rule 11 ----------------------------------------------------------------------------------


async def test_rule_11_what_is_not_taken_is_sent_again_under_the_same_id():
    agent, gate = gated()
    async with webhook() as hook, pushing(agent) as pushed:
        answers = iter([500, 503])
        hook.answer = lambda told: next(answers, 200)
        gate.set()
        task = await pushed.task("go", hook.url)
        await hook.until_over()
    first = [each for each in hook.told if each.number == 1]
    assert len(first) == 3
    assert len({each.headers["a2a-notification-id"] for each in first}) == 1
    assert len({each.body for each in first}) == 1
    assert task.id in first[0].headers["a2a-notification-id"]


async def test_rule_11_there_is_an_end_to_trying():
    """Delivery stops for a webhook that never accepts: its state becomes suspended."""
    agent, gate = gated()
    async with webhook() as hook, pushing(agent) as pushed:
        hook.answer = lambda told: 500
        gate.set()
        task = await pushed.task("go", hook.url)
        parked = await pushed.settled(task.id, PushState.SUSPENDED)
    assert "500" in parked.note
    assert f"{len(hook.told)} times in a row" in parked.note


# -- rule 12 ----------------------------------------------------------------------------------


async def test_rule_12_a_webhook_is_told_with_its_credentials_and_what_a_stream_tells(wire):
    async with webhook() as hook:
        config = pushed_with(wire, hook.url, token="sesame", secret="hunter3")
        await wire.task("work please", configuration=config)
        await hook.until_over()
        for each in hook.told:
            assert each.headers["authorization"] == "Bearer hunter3"
            assert each.headers["x-a2a-notification-token"] == "sesame"
            assert each.headers["a2a-version"] == wire.version
            media_type = "application/json" if wire.is_old else "application/a2a+json"
            assert each.headers["content-type"] == media_type
            # In 0.3, a delivery carries the current task.
            members = {"task", "statusUpdate", "artifactUpdate"}
            assert each.json["kind"] == "task" if wire.is_old else set(each.json) < members


async def test_rule_12_without_credentials_and_token_there_are_no_headers_for_them(wire):
    async with webhook() as hook:
        await wire.task("work please", configuration=pushed_with(wire, hook.url))
        await hook.until_over()
        for each in hook.told:
            assert not {"authorization", "x-a2a-notification-token"} & each.headers.keys()


# -- rule 23 ----------------------------------------------------------------------------------


@only(("JSONRPC", "1.0"), ("HTTP+JSON", "1.0"), ("GRPC", "1.0"))
async def test_rule_23_each_event_is_one_notification_in_order_from_the_task_on(wire):
    async with webhook() as hook:
        async with wire.streaming("chunks please", configuration=pushed_with(wire, hook.url)) as e:
            told = await e.rest()
        await hook.until_over()
    posted = [next(iter(each.json.items())) for each in hook.told]
    assert posted[0][0] == "task"
    assert [each.number for each in hook.told] == list(range(1, len(told) + 1))
    assert [kind for kind, _ in posted] == [event.kind for event in told]
    texts = [v["artifact"]["parts"][0]["text"] for k, v in posted if k == "artifactUpdate"]
    assert "".join(texts) == "one two three"


async def test_rule_23_a_direct_reply_is_told_too(wire):
    async with webhook() as hook:
        answer = await wire.send("say hello", configuration=pushed_with(wire, hook.url))
        await hook.until(lambda told: bool(told))
    (told,) = hook.told
    message = told.json if wire.is_old else told.json["message"]
    assert message["messageId"] == answer.result["messageId"]
    assert message["role"] == ("agent" if wire.is_old else "ROLE_AGENT")


# -- secrets of webhooks --------------------------------------------------------------------------


async def test_secrets_of_a_webhook_are_told_to_nobody(wire):
    task = await wire.task("ask please")
    url = "https://hooks.example.com/a"
    answers = [
        await wire.ask(
            "CreateTaskPushNotificationConfig",
            wire.webhook(url, id="c", secret="hunter3"),
            task=task["id"],
            config="c",
        ),
        await wire.ask("GetTaskPushNotificationConfig", task=task["id"], config="c"),
        await wire.ask("ListTaskPushNotificationConfigs", task=task["id"]),
    ]
    for answer in answers:
        assert not answer.is_refused
        assert url.encode() in answer.body
        assert b"hunter3" not in answer.body
    # An error about an invalid configuration does not contain the secrets either.
    wrong = wire.webhook("nonsense", id="c", token="se\x01same", secret="hunter3\x01")
    refused = await wire.ask("CreateTaskPushNotificationConfig", wrong, task=task["id"], config="c")
    assert refused.reason == "INVALID_PARAMS"
    assert not any(secret in refused.body for secret in (b"hunter3", b"same"))
