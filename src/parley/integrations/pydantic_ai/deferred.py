"""Deferred tool calls as questions to the caller, and answers as their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults, ToolDenied
from pydantic_ai.toolsets import AbstractToolset

from parley.agent.turn import Turn
from parley.extensions.questions import schema_part
from parley.integrations.answers import said_in
from parley.integrations.approvals import approval
from parley.integrations.pydantic_ai.remote_toolset import ASKED, RemoteToolset, returned
from parley.llm.remote_skills import RemoteQuestion
from parley.model.parts import Part


async def results_of(
    turn: Turn, requests: DeferredToolRequests, toolsets: Sequence[AbstractToolset[Any]], pause: int
) -> DeferredToolResults:
    """Ask the caller what a run waits for, one call after the other, and return the results.

    ``pause`` is how often the run has paused: with the id of a call it identifies a question.
    """
    results = DeferredToolResults()
    for call in requests.approvals:
        decision = await approval(
            turn, call.tool_name, call.args_as_dict(), key=f"{pause}:{call.tool_call_id}"
        )
        allowed: bool | ToolDenied = decision.is_approved
        if not allowed and decision.reason:
            allowed = ToolDenied(decision.reason)
        results.approvals[call.tool_call_id] = allowed
    for call in requests.calls:
        metadata = requests.metadata.get(call.tool_call_id) or {}
        key = f"{pause}:{call.tool_call_id}"
        remote = metadata.get(ASKED)
        if isinstance(remote, Mapping):
            value = await _remote(turn, remote, toolsets, key)
        else:
            kind = requests.kind(call.tool_call_id)
            value = said_in(await turn.ask(_question(call, metadata, kind), key=key))
        results.calls[call.tool_call_id] = value
    return results


def _question(call: ToolCallPart, metadata: Mapping[str, Any], kind: str) -> list[Part]:
    arguments = call.args_as_dict()
    data = {"kind": kind, "tool": call.tool_name, "arguments": arguments}
    if metadata:
        data["metadata"] = dict(metadata)
    text = metadata.get("question")
    if not text and kind == "question":
        words = [each for each in arguments.values() if isinstance(each, str)]
        text = words[0] if len(words) == 1 else None
    shown = msgspec.json.encode(arguments).decode()[:2000]
    text = text or f"The tool {call.tool_name} waits for its result. It was called with {shown}."
    return [Part(text=str(text)), Part(data=data, media_type="application/json")]


async def _remote(
    turn: Turn, asked: Mapping[str, Any], toolsets: Sequence[AbstractToolset[Any]], key: str
) -> Any:
    """Pass the questions of another agent on until its task ends, and return its result."""
    skill = next(
        (found[asked["skill"]] for found in remote_skills_in(toolsets, asked["address"])), None
    )
    if skill is None:
        raise LookupError(f"no toolset of the agent has the skill {asked['skill']!r} any more")
    task, text, schema, times = str(asked["task"]), str(asked["question"]), asked["schema"], 0
    while True:
        times += 1
        parts = [Part(text=text)] if schema is None else [Part(text=text), schema_part(schema)]
        answer = await turn.ask(parts, key=f"{key}:{times}")
        try:
            result = await skill.answer(task, said_in(answer), key=f"{key}:answer:{times}")
        except RemoteQuestion as question:
            task, text, schema = question.task.id, question.text, question.schema
        else:
            return returned(result)


def remote_skills_in(toolsets: Sequence[AbstractToolset[Any]], address: str) -> list[Any]:
    """Return the skills of the remote toolsets for an address, inside of others too."""
    found: list[Any] = []

    def look(each: AbstractToolset[Any]) -> None:
        if isinstance(each, RemoteToolset) and each.address == address:
            found.append(each.skills)

    for each in toolsets:
        each.apply(look)
    return found
