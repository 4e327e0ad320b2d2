"""The model of the desks: any OpenAI-compatible endpoint, or rules where there is none.

``PARLEY_MODEL_URL`` names the endpoint, ``PARLEY_MODEL`` the model, ``PARLEY_MODEL_KEY`` the key.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import cache
from typing import Any

from parley import Agent
from parley.llm import ModelRequest, ScriptedReply
from parley.llm.model import text_of
from parley.testing.model_endpoint import ModelEndpoint

NAME = os.environ.get("PARLEY_MODEL", "scripted-1")
ATTEMPTS = 1000
"""How often an agent tries: it does not give up because its server dies often."""
KEY = os.environ.get("PARLEY_MODEL_KEY") or os.environ.get("OPENAI_API_KEY", "none")


@cache
def _scripted() -> ModelEndpoint:
    return ModelEndpoint(rules)


def url() -> str:
    """Return the address of the endpoint: the one that is configured, else that of the rules."""
    return os.environ.get("PARLEY_MODEL_URL") or _scripted().url


@asynccontextmanager
async def running(agent: Agent) -> AsyncIterator[None]:
    """Serve the rules as an endpoint while an agent is served, unless there is a real one."""
    if os.environ.get("PARLEY_MODEL_URL"):
        yield
        return
    with _scripted():
        yield


# -- without an endpoint ---------------------------------------------------------------------------

VERBS = {"offer": "find", "find": "find", "show": "find", "book": "book", "add": "add",
         "cancel": "cancel", "suggest": "suggest"}  # fmt: skip
CITY = r"([A-Z][\w'-]*(?: [A-Z][\w'-]*)*)"
DAY = r"\d{4}-\d\d-\d\d"
HELP = "I understand: Offer ..., Book offer O-1, Cancel booking CODE."


def rules(request: ModelRequest) -> ScriptedReply | str:
    """Do what a model would: call the tool that a message asks for, and give its answer."""
    tools = {
        str(each["function"]["name"]): set(each["function"]["parameters"].get("properties", ()))
        for each in request.tools
    }
    results = request.tool_results
    if not results and (request.response_format is None or tools):
        verb = next((VERBS[w] for w in re.findall(r"\w+", request.said.lower()) if w in VERBS), "")
        known = fields(request.said)
        for name, parameters in tools.items():
            action, _, noun = name.partition("_")
            if action == verb and (verb != "find" or noun.rstrip("s") in request.said.lower()):
                arguments = {key: known[key] for key in parameters if key in known}
                return ScriptedReply(tool_calls=[(name, arguments)])
    return told(request, tools, answer_in(request, results))


def told(request: ModelRequest, tools: dict[str, set[str]], answer: dict[str, Any]) -> Any:
    """Return an answer in the way that is wanted: as JSON, with the framework's tool, as text."""
    for name, parameters in tools.items():
        if {"text", "offers", "booking"} <= parameters:
            return ScriptedReply(tool_calls=[(name, answer)])
    if request.response_format is None:
        return str(answer["text"])
    schema = request.response_format.get("json_schema", {}).get("schema", {})
    is_wrapped = list(schema.get("properties", ())) == ["response"]  # by the OpenAI Agents SDK
    return json.dumps({"response": answer} if is_wrapped else answer)


def answer_in(request: ModelRequest, results: list[str]) -> dict[str, Any]:
    """Return what the newest tool returned, as an answer."""
    if not results:
        results = [text_of(each) for each in request.messages if each.get("role") == "tool"]
    found: dict[str, Any] = {"text": results[-1] if results else HELP}
    with suppress(ValueError):
        found = json.loads(results[-1]) if results else found
    return {"text": "", "offers": [], "booking": None, **found}


def fields(said: str) -> dict[str, Any]:
    """Return what a message names, by the names of the tools' parameters."""
    patterns = {
        "origin": rf"\bfrom {CITY}",
        "destination": rf"\bto {CITY}",
        "city": rf"\bin {CITY}",
        "start": rf"({DAY})",
        "end": rf"{DAY} to ({DAY})",
        "offer": r"\boffer (O-\d+)",
        "code": r"\bbooking ([A-Z]+-\d+)",
        "gearbox": r"\b(manual|automatic)\b",
    }
    found = {key: each[1] for key, p in patterns.items() if (each := re.search(p, said))}
    if number := re.search(r"\bfor (\d+)", said):
        return {**found, "travellers": int(number[1])}
    return found
