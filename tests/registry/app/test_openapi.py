"""The OpenAPI document, checked against a registry by schemathesis."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from openapi_spec_validator import OpenAPIV31SpecValidator
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.registry.app.serving import SCHEME, draft, key, served

pytestmark = pytest.mark.anyio

EXAMPLES = int(os.environ.get("PARLEY_FUZZ_EXAMPLES", "12"))
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
UNREADABLE = "Invalid HTTP request received."
"""The response to a URL that is too long for the HTTP parser: no route sees it."""

PUBLIC = ["searchAgents", "exploreRegistry", "listAgents", "showAgent"]


@pytest.fixture(scope="module")
async def here():
    async with served(auth=SCHEME, public_search=True) as made:
        await made.registry.index.put([draft(name) for name in ("one", "two", "three")])
        yield made


@pytest.fixture(scope="module")
async def document(here):
    return (await here.get("/openapi.json")).json


@pytest.mark.slow
async def test_the_document_is_openapi_3_1(document):
    OpenAPIV31SpecValidator(document).validate()
    assert document["openapi"].startswith("3.1")


async def test_the_document_says_who_may_use_what(document):
    assert document["components"]["securitySchemes"]["apiKey"]["name"] == "X-API-Key"
    assert document["paths"]["/search"]["post"]["security"] == [{}, {"apiKey": []}]
    assert document["paths"]["/publish"]["post"]["security"] == [{"apiKey": []}]


def _check(
    document: dict[str, Any], url: str, name: str, mode: GenerationMode, headers: dict[str, str]
) -> int:
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=url)
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
            response = case.call(timeout=20, headers=headers)
            if response.text == UNREADABLE:
                return
            case.validate_response(response, checks=CHECKS)
        except FailureGroup as failures:  # not an Exception, so it would end the event loop too
            raise AssertionError(str(failures)) from None

    examples()
    return count


@pytest.mark.slow
async def test_what_the_document_allows_is_answered_as_it_says(here, document):
    for name in PUBLIC:
        count = await asyncio.to_thread(
            _check, document, here.url, name, GenerationMode.POSITIVE, {}
        )
        assert count > 1, name


@pytest.mark.slow
async def test_what_the_document_does_not_allow_is_refused_as_it_says(here, document):
    for name in PUBLIC:
        count = await asyncio.to_thread(
            _check, document, here.url, name, GenerationMode.NEGATIVE, {}
        )
        assert count > 1, name


@pytest.mark.slow
async def test_operators_are_answered_as_the_document_says(here, document):
    operators = [
        operation["operationId"]
        for path, methods in document["paths"].items()
        if path.startswith("/operator/")
        for operation in methods.values()
    ]
    assert len(operators) > 4
    for name in operators:
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            count = await asyncio.to_thread(_check, document, here.url, name, mode, key("root"))
            assert count > 1, name
