"""The OpenAPI document, checked by schemathesis against a real agent on a real server.

The examples are few, and the same in every run. For more, set ``PARLEY_FUZZ_EXAMPLES=1000``.
"""

from __future__ import annotations

import asyncio
import copy
import json
import os
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

import parley
from parley import Agent, CardDetails, Turn
from parley.model.operations import OPERATIONS
from parley.model.service import Caller
from parley.server.run import serving
from tests.kit.http import MESSAGE, ask

pytestmark = pytest.mark.anyio

JSON = {"A2A-Version": "1.0", "Content-Type": "application/a2a+json"}
JSON_FILES = {"Content-Type": "application/json"}
NAMES = [operation.name for operation in OPERATIONS]
NAMES += ["BeginUpload", "AppendToUpload", "DescribeUpload", "DownloadFile", "DescribeFile"]
EXAMPLES = int(os.environ.get("PARLEY_FUZZ_EXAMPLES", "15"))
WEBHOOKS = ["w-1", "w-2"]
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
LIMITS = settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def _agent() -> Agent:
    agent = Agent(
        name="Fuzzed",
        description="Is asked for everything that its document allows.",
        card=CardDetails(extended_card={"description": "Is known to you."}),
    )

    @agent.skill(tags=["test"])
    async def work(turn: Turn) -> str | None:
        """Answers at once, with a task, or with a question."""
        if len(turn.text) % 3 == 0:
            return f"You said {turn.text}"
        await turn.working("thinking")
        await turn.artifact(turn.text or "nothing", name="result")
        if len(turn.text) % 3 == 1:
            await turn.ask("More?")
        return None

    return agent


@pytest.fixture(scope="module")
async def fuzzed():
    """The address of the agent, its document, and ids for requests: of tasks, and unknown ones."""
    app = parley.asgi(_agent(), caller=lambda scope: Caller(id="ada", authenticated=True))
    async with serving(app) as url:
        document = (await ask(url, "GET", "/openapi.json")).json
        tasks = []
        for text in ("a", "bb"):
            message = {**MESSAGE, "parts": [{"text": text}]}
            body = json.dumps({"message": message}).encode()
            answer = await ask(url, "POST", "/message:send", body, JSON)
            tasks.append(answer.json["task"]["id"])
        begun = await ask(url, "POST", "/files", b'{"size": 0}', JSON_FILES)
        document["x-file"] = begun.json["id"]
        document["servers"] = [{"url": url}]
        yield url, document, [*tasks, "no-such-task"]


def _with_ids(document: dict[str, Any], ids: list[str]) -> dict[str, Any]:
    """Return the document with known ids and an address in place of any string."""
    document = copy.deepcopy(document)
    for path, verbs in document["paths"].items():
        for operation in verbs.values():
            for parameter in operation["parameters"]:
                if parameter.get("in") == "path" and path.startswith("/files"):
                    parameter["schema"] = {"enum": [document["x-file"], "0" * 48]}
                elif parameter.get("in") == "path":
                    is_task = parameter["name"] == "taskId" or "{taskId}" not in path
                    parameter["schema"] = {"enum": ids if is_task else WEBHOOKS}
            for content in operation.get("requestBody", {"content": {}})["content"].values():
                members = content.get("schema", {}).get("properties", {})
                if "url" in members:
                    members["url"] = {"enum": ["https://hooks.example/a2a"]}
                    members["id"] = {"enum": WEBHOOKS}
    return document


def _check(document: dict[str, Any], name: str, mode: GenerationMode) -> int:
    """Send all generated requests of one operation; return how many there were."""
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=document["servers"][0]["url"])
    operation = next(
        found.ok()
        for found in schema.get_all_operations()
        if found.ok().definition.raw["operationId"] == name
    )
    count = 0

    @LIMITS
    @given(case=operation.as_strategy(generation_mode=mode))
    def examples(case: schemathesis.Case) -> None:
        nonlocal count
        count += 1
        try:
            case.call_and_validate(checks=CHECKS, timeout=20)
        except FailureGroup as failures:  # not an Exception: it would end the event loop too
            raise AssertionError(str(failures)) from None

    examples()
    return count


@pytest.mark.parametrize("name", NAMES)
async def test_what_the_document_allows_is_answered_as_it_says(fuzzed, name):
    _, document, ids = fuzzed
    narrowed = _with_ids(document, ids)
    assert await asyncio.to_thread(_check, narrowed, name, GenerationMode.POSITIVE) > 1


@pytest.mark.parametrize("name", NAMES)
async def test_what_the_document_does_not_allow_is_refused_as_it_says(fuzzed, name):
    _, document, _ = fuzzed
    assert await asyncio.to_thread(_check, document, name, GenerationMode.NEGATIVE) > 1
