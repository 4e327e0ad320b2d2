"""Parts that adapters of frameworks share, and the error when a framework is missing."""

from __future__ import annotations

import ast
import importlib
import re
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import parley
from parley import Agent, Message, Part, TaskState, Turn
from parley.client.errors import FileLimitExceeded
from parley.conformance.background_server import BackgroundServer
from parley.host.host import Host, placed
from parley.host.options import ServerOptions
from parley.integrations import a2a_sdk, message_files
from parley.integrations.answers import (
    DoesNotFit,
    OpenQuestions,
    ask_until,
    decision_in,
    said_in,
    text_in,
)
from parley.integrations.conversations import thread_id, user_id
from parley.integrations.serving import MAX_REMEMBERED_BYTES, CallKeys, json_value, remembered
from parley.llm.remote_skills import RemoteQuestion, remote_skills
from parley.model.parts import Role
from parley.store.events import Scope
from parley.store.memory import MemoryTaskStore
from tests.engine.talk import Talk

pytestmark = pytest.mark.anyio


def answer(*parts: Part) -> Message:
    return Message(message_id="1", role=Role.USER, parts=parts)


def test_an_answer_is_its_data_or_its_text():
    both = answer(Part(text="yes"), Part(data={"a": 1}))
    assert (said_in(both), text_in(both)) == ({"a": 1}, "yes")
    assert (said_in(answer(Part(text="yes"))), text_in(answer(Part(data=None)))) == ("yes", "null")


@pytest.mark.anyio
async def test_a_question_is_asked_until_its_answer_fits():
    agent = Agent("Asks")

    @agent.skill(replies="task")
    async def ask(turn: Turn) -> str:
        def number(message: Message) -> int:
            try:
                return int(message.text)
            except ValueError:
                raise DoesNotFit(f"{message.text} is no number.") from None

        found = await ask_until(turn, lambda why: f"{why} How many?".strip(), number, key="many")
        return str(found + 1)

    host = Host(placed(agent), MemoryTaskStore(), ServerOptions(drain=0))
    await host.start()
    try:
        caller, asked = Talk(host.services[""], host), []
        task = await caller.task("go")
        for said in ("some", "more", "3"):
            asked.append(task.text)
            task = await caller.task(said, task_id=task.id)
    finally:
        await host.stop()
    assert asked == ["How many?", "some is no number. How many?", "more is no number. How many?"]
    assert (task.state, task.text) == (TaskState.COMPLETED, "4")


def test_calls_that_ask_the_same_are_told_apart_by_their_order():
    first, second = CallKeys(), CallKeys()
    asked = [("tool", {"b": 1, "a": 2}), ("tool", {"a": 2, "b": 1}), ("model", {"a": 2, "b": 1})]
    keys = [first.key(*each) for each in asked]
    assert len(set(keys)) == 3
    assert keys == [second.key(*each) for each in asked]


def test_what_is_too_long_or_no_json_is_not_remembered():
    assert remembered({"a": (1,)}) == {"a": [1]}
    assert remembered("x" * MAX_REMEMBERED_BYTES) is None
    assert (json_value({1: 2}), json_value(object())) == ({"value": {"1": 2}}, None)


# -- replies that approve or reject a tool call ----------------------------------------------------


@pytest.mark.parametrize(
    ("said", "is_approved"),
    [
        (["yes, please"], True),
        (["no, it is too dear"], False),
        (["do not"], False),
        ([{"approve": True}], True),
        (["Here is my decision.", {"approve": False}], False),
        (["yes, but only with a view"], None),
        ([{"approve": "yes"}], None),
        (["no", {"approve": True}], None),
        ([{"approve": True}, {"approve": False}], None),
        ([{}], None),
    ],
)
def test_only_a_clear_answer_decides(said, is_approved):
    parts = tuple(Part(text=each) if isinstance(each, str) else Part(data=each) for each in said)
    decision = decision_in(Message(message_id="1", role=Role.USER, parts=parts))
    assert (None if decision is None else decision.is_approved) is is_approved


# -- files of messages as a model's input ----------------------------------------------------------


async def test_the_files_of_a_message_are_bounded_together(monkeypatch):
    monkeypatch.setattr(message_files, "MAX_TOGETHER", 10)
    agent = Agent("Reader")

    @agent.skill
    async def read(turn: Turn) -> str:
        try:
            found = await message_files.input_of(turn, turn.message)
        except FileLimitExceeded:
            return "too much"
        return str(len(found))

    file = Part(raw=b"12345", media_type="text/plain")
    async with parley.connect(agent) as remote:
        assert (await remote.send([file] * 2)).text == "2"
        assert (await remote.send([file] * 3)).text == "too much"


# -- ids under which a framework keeps the data of a context and of its owner ----------------------


def turn_of(tenant: str = "", owner: str = "", context_id: str = "c") -> Any:
    """Return the parts of a turn that form its ids."""
    runner = SimpleNamespace(scope=Scope("agent", tenant, owner))
    return SimpleNamespace(context_id=context_id, _attempt=SimpleNamespace(runner=runner))


def test_a_context_and_a_user_keep_their_names_where_nobody_else_can_have_them():
    assert thread_id(turn_of()) == "c"
    assert (user_id(turn_of()), user_id(turn_of(owner="ada"))) == ("anonymous", "ada")


@pytest.mark.parametrize("id_of", [thread_id, user_id])
def test_no_two_owners_have_one_id(id_of):
    owners = [
        ("", ""), ("", "ada"), ("", "anonymous"), ("", "acme/ada"), ("acme", "ada"), ("acme", ""),
        ("acme\nada", ""), ("acme", "ada\n"), ("", "../ada"), ("", "ada\x1fissuer"),
    ]  # fmt: skip
    ids = {id_of(turn_of(tenant, owner)) for tenant, owner in owners}
    assert len(ids) == len(owners)
    assert all(each.replace("-", "").replace("_", "").replace(".", "").isalnum() for each in ids)


def test_no_context_is_named_like_the_thread_of_another_owner():
    named = thread_id(turn_of(owner="ada"))
    assert thread_id(turn_of(context_id=named)) != named


# -- questions of remote agents that wait for the model of a program without Parley ----------------


asking = Agent("Asks")


@asking.skill(replies="task")
async def ask(turn: Turn) -> str:
    """Asks which city."""
    city = await turn.ask("Which city?")
    return f"sunny in {city.text}"


async def test_a_question_stays_when_its_answer_does_not_reach_the_agent() -> None:
    server = BackgroundServer(parley.asgi(asking, store="memory:", drain=0.0))
    server.start()
    try:
        (skill,) = await remote_skills(server.url)
        questions = OpenQuestions(skill.card.name)
        with pytest.raises(RemoteQuestion) as asked:
            await skill.call({"message": "the weather"})
        questions.ask(skill, asked.value)
        task_id = asked.value.task.id
        agent = skill._agent
        with socket.socket() as closed:  # bound, but not listening
            closed.bind(("127.0.0.1", 0))
            skill._agent = f"http://127.0.0.1:{closed.getsockname()[1]}"
            assert (await questions.answer(task_id, "Oslo")).is_error
        skill._agent = agent
        assert (await questions.answer(task_id, "Oslo")).text == "sunny in Oslo"
        assert not questions
        assert (await questions.answer(task_id, "Oslo")).is_error
    finally:
        server.stop()


# -- private members of frameworks: only where the decision lists them, with the reason ------------


ROOT = Path(__file__).parents[2]
ADAPTERS = ROOT / "src" / "parley" / "integrations"
DECISION = ROOT / "docs" / "internals" / "decisions" / "0013-frameworks.md"

OURS = {"_attempt", "_is_protocol"}
"""Private members of Parley's own turn, and of the standard library."""


def is_private(name: object) -> bool:
    return isinstance(name, str) and re.fullmatch(r"_[A-Za-z]\w*", name) is not None


def members_in(tree: ast.Module) -> set[str]:
    """Return the private names that a module imports, or uses of foreign objects."""
    own, found = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            own.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            own.add(node.target.id)
        elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("parley"):
            names = [*(node.module or "").split("."), *(each.name for each in node.names)]
            private = [each for each in names if is_private(each)]
            found.update(private[-1:])
        elif isinstance(node, ast.Attribute) and is_private(node.attr):
            is_self = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            (own if is_self else found).add(node.attr)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "getattr":
            name = getattr(node.args[1], "value", None)
            found.update([name] if is_private(name) else [])
    return found - own - OURS


def test_each_private_member_of_a_framework_is_named_with_its_reason() -> None:
    used = {
        (folder.name, member)
        for folder in ADAPTERS.iterdir()
        if folder.is_dir()
        for path in folder.glob("*.py")
        for member in members_in(ast.parse(path.read_text()))
    }
    table = DECISION.read_text().partition("## Private members of frameworks")[2]
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| .+ \|$", table, re.MULTILINE)
    named = {(name, member) for name, cells in rows for member in re.findall(r"`(\w+)`", cells)}
    assert used == named


# -- A framework that is not installed: the error says how to install it ---------------------------


@pytest.mark.parametrize("name", ["google_adk", "pydantic_ai"])
def test_a_missing_framework_is_named_with_the_command_that_installs_it(name: str) -> None:
    extra = name.replace("_", "-")
    with pytest.raises(ImportError, match=rf'pip install "parley-a2a\[{extra}\]"'):
        importlib.import_module(f"parley.integrations.{name}")


# -- without the official SDK, its integration says which command installs it ----------------------


def test_the_command_that_installs_the_sdk_is_named() -> None:
    with pytest.raises(ImportError, match=r'pip install "parley-a2a\[a2a-sdk\]"'):
        a2a_sdk.agent(object(), object())
