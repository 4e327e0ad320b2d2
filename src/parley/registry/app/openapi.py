"""The OpenAPI 3.1 document of a registry, made from its operations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from parley.model.cards import AgentCapabilities, AgentCard
from parley.model.distribution import VERSION
from parley.registry.app.operations import ERROR_CODES, Needs, Operation
from parley.security.schemes.scheme import Security
from parley.server.cards.openapi import security_of

_ERROR = {
    "type": "object",
    "required": ["errorCode", "message"],
    "properties": {
        "errorCode": {"type": "string", "enum": sorted({*ERROR_CODES.values()})},
        "message": {"type": "string"},
    },
}

_MEANINGS = {
    400: "The request is wrong; the message says what would be right.",
    401: "Credentials are missing, or were refused.",
    403: "These credentials do not allow this.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    429: "A limit is reached; Retry-After says how long to wait.",
    500: "The registry failed; its log has the reference of the message.",
    503: "The registry cannot work now.",
}


def openapi_document(
    operations: Iterable[Operation],
    *,
    title: str,
    base: str,
    security: Security | None,
    public: bool,
) -> dict[str, Any]:
    """Return the document. ``public``: everyone may search."""
    paths: dict[str, dict[str, Any]] = {}
    schemas: dict[str, Any] = {"Error": _ERROR}
    schemes, required = _security(security)
    for each in operations:
        if not each.is_documented:
            continue
        document = _operation(each)
        if required:
            is_open = public and each.needs is Needs.SEARCHER
            document["security"] = [{}, *required] if is_open else required
        paths.setdefault(each.path, {})[each.method.lower()] = document
        schemas.update(each.schemas)
    components: dict[str, Any] = {"schemas": schemas}
    if schemes:
        components["securitySchemes"] = schemes
    return {
        "openapi": "3.1.0",
        "info": {
            "title": title,
            "version": VERSION,
            "description": "A registry of agents (Agentic Resource Discovery 0.9), with additions "
            "of Parley's: single entries, operators, publishing.",
        },
        "servers": [{"url": base}],
        "paths": paths,
        "components": components,
    }


def _operation(operation: Operation) -> dict[str, Any]:
    document: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "responses": _responses(operation),
    }
    if operation.description:
        document["description"] = operation.description
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": schema}
        for name, schema in operation.path_parameters.items()
    ]
    parameters += [
        {"name": name, "in": "query", "required": False, "schema": schema}
        for name, schema in operation.parameters.items()
    ]
    if parameters:
        document["parameters"] = parameters
    if operation.request is not None:
        content = {"application/json": {"schema": operation.request}}
        document["requestBody"] = {"required": True, "content": content}
    return document


def _responses(operation: Operation) -> dict[str, Any]:
    found: dict[str, Any] = {}
    done = [status for status in operation.responses if 200 <= status < 300] or [200]
    for status in done:
        found[str(status)] = {"description": operation.responses.get(status, "Done.")}
        if operation.response is not None:
            content = {operation.media_type: {"schema": operation.response}}
            found[str(status)]["content"] = content
    errors = {400, 401, 403, 429, 500, 503}
    if operation.request is not None:
        errors |= {413, 415}
    for status in sorted(errors | {each for each in operation.responses if each >= 400}):
        words = operation.responses.get(status) or _MEANINGS.get(status, "The request is refused.")
        schema = {"$ref": "#/components/schemas/Error"}
        found[str(status)] = {
            "description": words,
            "content": {"application/json": {"schema": schema}},
        }
        if status == 429:
            found["429"]["headers"] = {"Retry-After": {"schema": {"type": "integer"}}}
    if operation.parameters or operation.path_parameters:
        found["431"] = {"description": "The address is too long."}
    if 304 in operation.responses:
        found["304"] = {"description": operation.responses[304]}
    return found


def _security(security: Security | None) -> tuple[dict[str, Any], list[dict[str, list[str]]]]:
    """Return schemes and requirements as OpenAPI has them."""
    if security is None:
        return {}, []
    card = AgentCard(
        name="",
        description="",
        version="",
        supported_interfaces=(),
        capabilities=AgentCapabilities(),
        default_input_modes=(),
        default_output_modes=(),
        skills=(),
        security_schemes={each.name: each.declared() for each in security.schemes},
        security_requirements=security.declared(),
    )
    return security_of(card)
