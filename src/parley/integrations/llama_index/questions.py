"""Events that ask a human, as questions to the caller; calls of remote agents that wait."""

from __future__ import annotations

import asyncio
import importlib
from functools import reduce
from operator import or_
from typing import Any

from llama_index.core.workflow import HumanResponseEvent, InputRequiredEvent, Workflow

from parley.agent.turn import Turn
from parley.engine.typed.value_type import ValueType, data_of
from parley.extensions.questions import schema_part
from parley.integrations.answers import DoesNotFit, ask_until
from parley.integrations.remembered_calls import CallKeys
from parley.llm.remote_skills import RemoteSkill
from parley.model.parts import Message, Part

TEXTS = ("prefix", "message", "msg", "question", "prompt", "text")
"""The fields of an event that may have its question in words; the first one counts."""


class RemoteCallEvent(InputRequiredEvent):  # type: ignore[misc]
    """A workflow stands still for a call of a remote skill, which the turn makes."""

    tool: str
    arguments: dict[str, Any]
    call: str


class Questions:
    """Answers the questions of one turn."""

    def __init__(self, turn: Turn, workflow: Workflow) -> None:
        self._skills = remote_in(workflow)
        self._turn = turn

    async def answers(self, asked: list[dict[str, Any]], number: int) -> list[Any]:
        """Return the events that answer. Equal remote calls are made once, others at once."""
        calls = {each["call"]: each["fields"] for each in asked if "call" in each}
        made = await asyncio.gather(*[self._call(calls[each], each, number) for each in calls])
        results = dict(zip(calls, made, strict=True))
        return [
            results.get(each.get("call")) or await self._ask(each, f"llama-index:{number}:{index}")
            for index, each in enumerate(asked)
        ]

    async def _ask(self, asked: dict[str, Any], key: str) -> Any:
        fields = asked["fields"]
        text = next((fields[name] for name in TEXTS if isinstance(fields.get(name), str)), "")
        given = {name: value for name, value in fields.items() if value != text}
        answers = [_class_of(each) for each in asked["answers"]]
        kinds = [each for each in answers if each.model_fields] or [HumanResponseEvent]
        shown = [Part(data=given, media_type="application/json")] if given else []
        if kinds != [HumanResponseEvent]:
            shown.append(schema_part(ValueType(reduce(or_, kinds)).schema))

        def read(answer: Message) -> Any:
            try:  # whoever waits compares fields of the question, so they come back
                values = given | _fields(kinds, given, answer)
                kind = min(kinds, key=lambda each: len(values.keys() - each.model_fields.keys()))
                return ValueType(kind).read(values)
            except ValueError as error:
                raise DoesNotFit(f"That does not fit: {error}.") from None

        return await ask_until(
            self._turn,
            lambda problem: [Part(text=f"{problem} {text or asked['name']}".strip()), *shown],
            read,
            key=key,
        )

    async def _call(self, fields: dict[str, Any], call: str, number: int) -> Any:
        skill = self._skills.get(fields["tool"])
        if skill is None:
            raise LookupError(f"the tool {fields['tool']!r} is no remote skill any more")
        result = await skill.call(fields["arguments"], key=f"llama-index:{number}:{call}")
        return HumanResponseEvent(response=result.text, is_error=result.is_error, call=call)


def _fields(kinds: list[Any], given: dict[str, Any], answer: Message) -> dict[str, Any]:
    """Return the fields of an event that an answer has, as data or for its only fitting field.

    ``response`` has it, too, if no class has such a field. Raises ``ValueError``.
    """
    data = data_of(answer)
    said = answer.text or data
    fields = {name: each for kind in kinds for name, each in kind.model_fields.items()}
    rest = {} if "response" in fields else {"response": said}
    if isinstance(data, dict):
        return {**rest, **data}
    free = {name: each for name, each in fields.items() if name not in given}
    needed = [name for name, each in free.items() if each.is_required()]
    names = needed or [name for name, each in free.items() if each.annotation is str] or [*free]
    if "response" in names or not names:
        return {"response": said}
    if len(names) > 1:
        raise ValueError(f"send data with {', '.join(names)}")
    return {**rest, names[0]: said}


def described(event: InputRequiredEvent, workflow: Workflow, context: Any) -> dict[str, Any]:
    """Return a question with the classes of events that may answer it.

    ``context`` is that of the run, as JSON. A step of the turn keeps the question, so the fields
    have to be JSON.
    """
    if isinstance(event, RemoteCallEvent):
        fields = {"tool": event.tool, "arguments": event.arguments}
        return {"call": event.call, "fields": fields}
    fields = {**event.model_dump(mode="json"), **dict(event.items())}
    fields.pop("_data", None)
    steps = workflow._get_steps().values()
    taken = [kind for each in steps for kind in each._step_config.accepted_events]
    kinds = [each for each in taken if issubclass(each, HumanResponseEvent)]
    named = waiting_in(context) or [f"{each.__module__}.{each.__name__}" for each in kinds]
    return {"name": type(event).__name__, "fields": fields, "answers": named}


def waiting_in(context: dict[str, Any]) -> list[str]:
    """Return the classes of the events that the steps of a run wait for."""
    return [
        each["waiting_for_event"]
        for worker in context["workers"].values()
        for each in worker["collected_waiters"]
        if each["resolved_event"] is None
    ]


def remote_in(workflow: Workflow) -> dict[str, RemoteSkill]:
    """Return the remote skills that agents of a workflow call, by the names of their tools."""
    found: dict[str, RemoteSkill] = {}
    for agent in agents_of(workflow):
        for tool in [agent, *(getattr(agent, "tools", None) or ())]:
            skill = getattr(tool, "skill", None)
            if isinstance(skill, RemoteSkill):
                found[skill.name] = skill
    return found


def agents_of(workflow: Any) -> list[Any]:
    """Return the agents of a workflow, or the workflow itself."""
    agents = getattr(workflow, "agents", None)
    return [*agents.values()] if isinstance(agents, dict) else [workflow]


def call_id(tool: str, arguments: dict[str, Any]) -> str:
    """Return what identifies a call: equal calls have equal ids."""
    return CallKeys().key("call", [tool, arguments])


def _class_of(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)
