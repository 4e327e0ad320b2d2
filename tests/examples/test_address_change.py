"""An address changes only with proof."""

from __future__ import annotations

import re
from datetime import timedelta

import aiohttp
import pytest

from parley import Part, TaskState, testing
from tests.kit.waiting import until

pytestmark = pytest.mark.anyio

MOVE = {"customer": "C-17", "street": "Aleksanterinkatu 1", "city": "Helsinki"}
OLD = "Mannerheimintie 12, Helsinki"
BILL = Part(raw=b"%PDF-1.4", media_type="application/pdf", filename="bill.pdf")


def asked(task) -> str:
    assert task.state is TaskState.INPUT_REQUIRED, (task.state, task.text)
    return task.status.message.text


async def test_a_missing_phone_and_a_wrong_document_are_asked_for_again(
    example, serve, caplog
) -> None:
    module = example("address_change")
    async with serve(module.agent) as desk:
        task = await desk.send(data=MOVE)
        assert "phone" in asked(task)
        task = await desk.send("+358 40 1234567", task_id=task.id)
        assert "Send a document" in asked(task)
        task = await desk.send("here you are", task_id=task.id)
        assert asked(task).startswith("There was no file in your message.")
        task = await desk.send(["my passport", BILL], task_id=task.id)
        assert asked(task).startswith("A passport does not say where you live.")
        task = await desk.send(
            ["my electricity bill", BILL], task_id=task.id, return_immediately=True
        )
        await until(lambda: "decide at" in caplog.text, 20)
        assert module.addresses["C-17"] == OLD
        place = re.search(r"decide at (\S+)", caplog.text)
        assert place is not None
        decision = {"verified": True, "clerk": "Maija"}
        async with aiohttp.ClientSession() as clerk, clerk.post(place[1], json=decision) as answer:
            assert answer.status < 300
        done = await desk.wait(task.id, timeout=20)
    assert done.state is TaskState.COMPLETED
    assert module.addresses["C-17"] == "Aleksanterinkatu 1, Helsinki"
    assert done.artifacts[-1].parts[0].data["verified_by"] == "Maija"


async def test_who_never_sends_a_proof_keeps_the_old_address(example, serve) -> None:
    module = example("address_change")
    photo = Part(raw=b"GIF89a", media_type="image/gif", filename="cat.gif")
    async with serve(module.agent) as desk:
        task = await desk.send(data={**MOVE, "phone": "+358 40 1234567"})
        for words in ("this is my cat", "my library card", "nothing else"):
            asked(task)
            task = await desk.send([words, photo], task_id=task.id)
    assert task.state is TaskState.REJECTED
    assert module.addresses["C-17"] == OLD


async def test_what_nobody_verifies_is_never_completed(example) -> None:
    module = example("address_change")
    async with testing.client(module.agent) as desk:
        task = await desk.send(data={**MOVE, "phone": "+358 40 1234567"})
        task = await desk.send(["water bill", BILL], task_id=task.id, return_immediately=True)
        await desk.advance(timedelta(days=13))
        assert (await desk.get(task.id)).state is TaskState.WORKING
        await desk.advance(timedelta(days=2))
        assert (await desk.get(task.id)).state is TaskState.REJECTED
    assert module.addresses["C-17"] == OLD


DECISIONS = {
    "refused": ({"verified": False, "clerk": "Maija", "reason": "another name"}, "another name"),
    "a word": ({"verified": "no", "clerk": "Maija"}, "cannot be read"),
    "by nobody": ({"verified": True}, "cannot be read"),
    "no object": (True, "cannot be read"),
    "a form": ({"data": {"verified": True, "clerk": "Maija"}}, ""),
    "a message": (
        {
            "role": "ROLE_USER",
            "parts": [{"text": "Yes"}, {"data": {"verified": True, "clerk": "M"}}],
        },
        "",
    ),
    "a form that refuses": (
        {"data": {"verified": False, "clerk": "M", "reason": "a copy"}},
        "copy",
    ),
}


@pytest.mark.parametrize("name", DECISIONS)
async def test_a_clerk_decides_in_json_or_in_a_form(name, example, serve, caplog) -> None:
    module = example("address_change")
    refusal, said = DECISIONS[name]
    async with serve(module.agent) as desk:
        task = await desk.send(data={**MOVE, "phone": "+358 40 1234567"})
        task = await desk.send(["gas bill", BILL], task_id=task.id, return_immediately=True)
        await until(lambda: "decide at" in caplog.text, 20)
        place = re.search(r"decide at (\S+)", caplog.text)
        assert place is not None
        async with aiohttp.ClientSession() as clerk, clerk.post(place[1], json=refusal) as answer:
            assert answer.status < 300
        done = await desk.wait(task.id, timeout=20)
    if said:
        assert done.state is TaskState.REJECTED
        assert said in done.text
        assert module.addresses["C-17"] == OLD
    else:
        assert done.state is TaskState.COMPLETED
        assert module.addresses["C-17"] == "Aleksanterinkatu 1, Helsinki"
