"""Events that ask a human, as questions to the caller; calls of remote agents that wait."""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from llama_index.core.workflow import HumanResponseEvent, InputRequiredEvent, Workflow

from parley.agent.tools.tool import ToolResult
from parley.agent.turn import Turn
from parley.llm.remote_skills import RemoteSkill
from parley.model.parts import Part

TEXTS = ("prefix", "message", "msg", "question", "prompt", "text")
"""The fields of an event that may have its question in words; the first one counts."""


class RemoteCallEvent(InputRequiredEvent):  # type: ignore[misc]
    """A workflow stands still for a call of a remote skill, which the turn makes."""

    tool: str
    arguments: dict[str, Any]
    call: str


class Questions:
    """Answers the questions of one turn. ``results`` has those of remote calls."""

    def __init__(self, turn: Turn, workflow: Workflow) -> None:
        self.results: dict[str, ToolResult] = {}
        self.skills: dict[str, RemoteSkill] = remote_in(workflow)
        self._turn = turn
        self._workflow = workflow

    async def answers(self, asked: list[dict[str, Any]], number: int) -> list[HumanResponseEvent]:
        """Return the events that answer. Remote calls are made at the same time."""
        remote = [each for each in asked if "call" in each]
        await asyncio.gather(*[self._call(each, number) for each in remote])
        found = []
        for index, each in enumerate(asked):
            if "call" in each:
                found.append(HumanResponseEvent(response="done", call=each["call"]))
            else:
                found.append(await self._ask(each, f"llama-index:{number}:{index}"))
        return found

    async def _ask(self, asked: dict[str, Any], key: str) -> HumanResponseEvent:
        fields = asked["fields"]
        text = next((fields[name] for name in TEXTS if isinstance(fields.get(name), str)), "")
        others = {name: value for name, value in fields.items() if value != text}
        parts = [Part(text=text or asked["name"])]
        if others:
            parts.append(Part(data=others, media_type="application/json"))
        answer = await self._turn.ask(parts, key=key)
        data = [part.data for part in answer.parts if part.has_data]
        # Whoever waits compares fields of the question (``requirements``), so they come back.
        values = {**others, **(data[0] if data and isinstance(data[0], dict) else {})}
        values.setdefault("response", answer.text or (data[0] if data else ""))
        return _class_of(asked["answer"])(**values)

    async def _call(self, asked: dict[str, Any], number: int) -> None:
        call = asked["call"]
        if call in self.results:
            return
        skill = self.skills.get(asked["fields"]["tool"])
        if skill is None:
            raise LookupError(f"the tool {asked['fields']['tool']!r} is no remote skill any more")
        key = f"llama-index:{number}:{call}"
        self.results[call] = ToolResult()  # an equal call of the same round has the same result
        self.results[call] = await skill.call(asked["fields"]["arguments"], key=key)


def described(event: InputRequiredEvent, waiting: list[str]) -> dict[str, Any]:
    """Return a question as JSON, with the class of its answer.

    ``waiting`` are the classes of events that steps wait for. Raises ``TypeError`` for fields that
    are no JSON.
    """
    if isinstance(event, RemoteCallEvent):
        fields = {"tool": event.tool, "arguments": event.arguments}
        return {"call": event.call, "fields": fields}
    fields = {**event.model_dump(mode="json"), **dict(event.items())}
    fields.pop("_data", None)
    try:
        json.dumps(fields)
    except (TypeError, ValueError):
        raise TypeError(
            f"the event {type(event).__name__} asks the caller, so its fields have to be JSON"
        ) from None
    own = [each for each in waiting if each != _name_of(HumanResponseEvent)]
    answer = own[0] if own else _name_of(HumanResponseEvent)
    return {"name": type(event).__name__, "fields": fields, "answer": answer}


def awaited_by(workflow: Workflow, context: dict[str, Any]) -> list[str]:
    """Return the classes of the human answers that a run waits for, or that its steps take."""
    waiting = [
        each["waiting_for_event"]
        for worker in context["workers"].values()
        for each in worker["collected_waiters"]
        if each["resolved_event"] is None
    ]
    if waiting:
        return waiting
    steps = workflow._get_steps().values()
    taken = [kind for each in steps for kind in each._step_config.accepted_events]
    return [_name_of(each) for each in taken if issubclass(each, HumanResponseEvent)]


def remote_in(workflow: Workflow) -> dict[str, RemoteSkill]:
    """Return the remote skills that agents of a workflow call, by the names of their tools."""
    found: dict[str, RemoteSkill] = {}
    agents = getattr(workflow, "agents", None)
    for agent in agents.values() if isinstance(agents, dict) else [workflow]:
        for tool in [agent, *(getattr(agent, "tools", None) or ())]:
            skill = getattr(tool, "skill", None)
            if isinstance(skill, RemoteSkill):
                found[skill.name] = skill
    return found


def call_id(tool: str, arguments: dict[str, Any]) -> str:
    """Return what identifies a call: equal calls have equal ids."""
    said = json.dumps([tool, arguments], sort_keys=True, default=str)
    return hashlib.sha256(said.encode()).hexdigest()[:24]


def _name_of(kind: type) -> str:
    return f"{kind.__module__}.{kind.__name__}"


def _class_of(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


_ASKED: ContextVar[Questions | None] = ContextVar("parley_llama_index_questions", default=None)


def current_questions() -> Questions | None:
    """Return what answers the questions of the turn that runs, ``None`` outside of one."""
    return _ASKED.get()


@contextmanager
def asking(questions: Questions) -> Iterator[None]:
    """Let ``current_questions`` return these."""
    token = _ASKED.set(questions)
    try:
        yield
    finally:
        _ASKED.reset(token)
