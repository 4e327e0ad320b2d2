"""The OpenAPI 3.1 document of an agent: its HTTP+JSON binding, for tools to read.

It is made from the table of operations, the schemas of the data model and the agent's card, and
leaves out what the card does not declare.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec

from parley.extensions.declared import CompositionPicture
from parley.model.cards import AgentCard, OAuthFlows, SecurityScheme
from parley.model.errors import ERRORS, A2AError
from parley.model.extensions import Extension
from parley.model.operations import OPERATIONS, Operation, SendMessageResponse, StreamResponse
from parley.model.parts import Part
from parley.model.service import A2AService
from parley.model.struct import A2AStruct, Timestamp
from parley.server.cards.openapi_files import file_paths
from parley.server.cards.openapi_security import security_of
from parley.wire import versions

Json = dict[str, Any]

MEDIA_TYPES = ("application/a2a+json", "application/json")

_REF = "#/components/schemas/{name}"
_VERSIONLESS_ANSWER = _REF.format(name="OfVersionUnsaid")
_OF_ANY = "OfAnyVersion"
_VERSIONLESS = (
    f"Without the header A2A-Version the request is of version {versions.DEFAULT_VERSION}, "
    "and is answered in that, whose forms are not described here."
)
_FIELD = re.compile(r"\{(\w+)\}")

# Types with exactly one of several members.
_ONE_OF: dict[type[A2AStruct], tuple[str, ...]] = {
    Part: ("text", "raw", "url", "data"),
    **{
        kind: tuple(field.encode_name for field in msgspec.structs.fields(kind))
        for kind in (SendMessageResponse, StreamResponse, SecurityScheme, OAuthFlows)
    },
}
_NARROWER = {"historyLength": {"minimum": 0}, "pageSize": {"minimum": 0, "maximum": 100}}
_EXAMPLE = {"message": {"messageId": "m-1", "role": "ROLE_USER", "parts": [{"text": "Hello"}]}}
_BY_HTTP = {
    405: "There is such a path, for another verb.",
    413: "The body is larger than the server takes.",
    415: "The body does not say that it is JSON.",
}


def document(
    card: AgentCard, extensions: Sequence[Extension] = (), *, url: str, names_version: bool = True
) -> Json:
    """Return the document of an agent at ``url``.

    With ``names_version``, requests must name their version.
    """
    schemes, requirements = security_of(card)
    operations = [
        (operation, _summary(operation))
        for operation in OPERATIONS
        if not operation.capability or getattr(card.capabilities, operation.capability)
    ]
    operations += [
        (method.operation, extension.description or f"A method of {extension.uri}.")
        for extension in extensions
        for method in extension.methods
    ]
    schemas = _schemas(tuple(operation for operation, _ in operations))
    paths: dict[str, Json] = {}
    for operation, words in operations:
        path = operation.path
        for field in _FIELD.findall(path):
            path = path.replace(f"{{{field}}}", f"{{{_camel(operation, field)}}}")
        described = _operation(operation, words, schemas, names_version=names_version)
        paths.setdefault(path, {})[operation.verb.lower()] = described
    made: Json = {
        "openapi": "3.1.0",
        "info": {
            "title": card.name,
            "description": card.description,
            "version": card.version or "0",
        },
        "servers": [{"url": url.rstrip("/") or "/"}],
        "paths": {**paths, **file_paths(card)},
        "components": {
            "schemas": {**schemas, **_ERROR_SCHEMAS},
            "responses": _error_responses(),
            "parameters": _parameters(names_version=names_version),
            "securitySchemes": schemes,
        },
    }
    for extension in extensions:
        if isinstance(extension, CompositionPicture):
            shown = {"mermaid": extension.mermaid, "svg": extension.svg}
            made["info"]["x-parley-composition"] = shown
    if requirements:
        made["security"] = requirements
    if card.documentation_url:
        made["externalDocs"] = {"url": card.documentation_url}
    return made


# -- operations --------------------------------------------------------------------------------


def _operation(operation: Operation, words: str, schemas: Json, *, names_version: bool) -> Json:
    in_path = _FIELD.findall(operation.path)
    request = schemas[operation.request.__name__]
    rest = {
        name: schema
        for name, schema in request["properties"].items()
        if name not in {_camel(operation, field) for field in in_path}
    }
    parameters: list[Json] = [{"$ref": "#/components/parameters/A2A-Version"}]
    parameters.append({"$ref": "#/components/parameters/A2A-Extensions"})
    if operation.streaming and operation.safe:
        parameters.append({"$ref": "#/components/parameters/Last-Event-ID"})
    for field in in_path:
        name = _camel(operation, field)
        schema = {**request["properties"][name], "minLength": 1}
        parameters.append({"name": name, "in": "path", "required": True, "schema": schema})
    described: Json = {"operationId": operation.name, "summary": words, "parameters": parameters}
    if operation.verb == "POST":
        body = _body(operation, request, rest, in_path)
        if body is not None:
            described["requestBody"] = body
    else:
        parameters += [
            {"name": name, "in": "query", "required": name in request["required"], "schema": schema}
            for name, schema in rest.items()
            if name != "tenant"
        ]
    if names_version and _may_be_versionless(operation):
        described["description"] = _VERSIONLESS
        described["responses"] = {"200": _or_versionless(_answer(operation)), **_VERSIONLESS_ERRORS}
    else:
        described["responses"] = {"200": _answer(operation), **_ERRORS}
    return described


def _may_be_versionless(operation: Operation) -> bool:
    """Return whether a request without a version is answered too, in another version."""
    return any(
        (route.verb, route.path) == (operation.verb, operation.path)
        for version in versions.SUPPORTED_VERSIONS
        for route in versions.dialect(version).http_json.versionless_routes
    )


def _or_versionless(response: Json) -> Json:
    """Return a response that may also answer a request without a version."""
    content = dict(response["content"])
    schema = content["application/json"]["schema"]
    content["application/json"] = {"schema": {"anyOf": [schema, {"$ref": _VERSIONLESS_ANSWER}]}}
    return {**response, "content": content}


def _body(operation: Operation, request: Json, rest: Json, in_path: Sequence[str]) -> Json | None:
    """Return the body of a request, ``None`` if the path has all fields."""
    schema: Json = {"$ref": _REF.format(name=operation.request.__name__)}
    if in_path:
        rest = {name: each for name, each in rest.items() if name != "tenant"}
        if not rest:
            return None
        schema = {"type": "object", "properties": rest}
        required = [name for name in request["required"] if name in rest]
        if required:
            schema["required"] = required
    content: Json = {"schema": schema}
    if operation.request.__name__ == "SendMessageRequest":
        content["example"] = _EXAMPLE
    return {"required": bool(schema.get("required", not in_path)), "content": _json(content)}


def _answer(operation: Operation) -> Json:
    schema = {"$ref": _REF.format(name=operation.response.__name__)}
    if not operation.streaming:
        return {"description": "The answer.", "content": _json({"schema": schema})}
    event = {
        "description": "One event of the stream.",
        "type": "object",
        "properties": {
            "id": {"type": "string", "description": "Its number in the log of the task."},
            "data": {
                "type": "string",
                "contentMediaType": "application/json",
                "contentSchema": {"anyOf": [schema, {"$ref": _REF.format(name="Status")}]},
            },
        },
        "required": ["data"],
    }
    return {
        "description": "Server-sent events, of the schema below. An error is the last of them.",
        "content": {"text/event-stream": {"schema": event}},
    }


def _parameters(*, names_version: bool) -> Json:
    return {
        "A2A-Version": {
            "name": "A2A-Version",
            "in": "header",
            "required": names_version,
            "description": "The version of the protocol that the request is of.",
            "schema": {"type": "string", "enum": [versions.LATEST]},
        },
        "A2A-Extensions": {
            "name": "A2A-Extensions",
            "in": "header",
            "description": "The URIs of extensions to be in force, with commas between them.",
            "schema": {"type": "string"},
        },
        "Last-Event-ID": {
            "name": "Last-Event-ID",
            "in": "header",
            "description": "The id of the last event that was seen: the stream begins after it.",
            "schema": {"type": "string", "pattern": "^[0-9]{1,9}$"},
        },
    }


def _summary(operation: Operation) -> str:
    return _first_words(getattr(A2AService, operation.method).__doc__)


def _json(content: Json) -> Json:
    return {media_type: content for media_type in MEDIA_TYPES}


def _camel(operation: Operation, field: str) -> str:
    for each in msgspec.structs.fields(operation.request):
        if each.name == field:
            return each.encode_name
    return field


# -- schemas -----------------------------------------------------------------------------------


@cache
def _schemas(operations: tuple[Operation, ...]) -> Json:
    """Return the schemas of requests and responses, by name."""
    kinds = {kind for operation in operations for kind in (operation.request, operation.response)}
    _, schemas = msgspec.json.schema_components(
        sorted(kinds, key=lambda kind: kind.__name__),
        schema_hook=_timestamp_schema,
        ref_template=_REF,
    )
    one_of = {kind.__name__: members for kind, members in _ONE_OF.items()}
    for name, schema in schemas.items():
        # Unknown members are ignored.
        schema.pop("additionalProperties", None)
        schema.pop("title", None)
        schema["description"] = _first_words(schema.get("description"))
        if "enum" in schema:
            schema["type"] = "string"
            schema["enum"] = [e for e in schema["enum"] if not str(e).endswith("_UNSPECIFIED")]
        members = schema.get("properties", {})
        schema.update(
            {"properties": {m: _without_null(m, s) for m, s in members.items()}} if members else {}
        )
        if name in one_of:
            schema["oneOf"] = [{"required": [member]} for member in one_of[name]]
    return schemas


def _timestamp_schema(kind: type) -> Json:
    if kind is Timestamp:
        return {"type": "string", "format": "date-time"}
    raise NotImplementedError(kind)


def _without_null(name: str, schema: Json) -> Json:
    """Return a member's schema without the marks of an optional one."""
    schema = {key: value for key, value in schema.items() if key != "default"}
    if "anyOf" in schema:
        schema = next(each for each in schema["anyOf"] if each.get("type") != "null")
    return {**schema, **_NARROWER.get(name, {})}


def _first_words(text: str | None) -> str:
    """Return the first paragraph of a docstring."""
    words = " ".join((text or "").partition("\n\n")[0].split())
    return words.replace("``", "`").replace("(specification ", "(")


# -- errors ------------------------------------------------------------------------------------

_ANY_TYPE = {"type": "string", "description": "What kind of detail this is."}


def _detail(name: str, properties: Json) -> Json:
    kind = {"type": "string", "const": f"type.googleapis.com/google.rpc.{name}"}
    return {
        "type": "object",
        "properties": {"@type": kind, **properties},
        "required": ["@type", *properties],
    }


_ERROR_SCHEMAS: Json = {
    "Status": {
        "description": "Why a request was refused: a google.rpc.Status.",
        "type": "object",
        "properties": {
            "error": {
                "type": "object",
                "properties": {
                    "code": {"type": "integer", "description": "The HTTP status."},
                    "status": {"type": "string", "description": "The name of a gRPC status."},
                    "message": {"type": "string"},
                    "details": {
                        "type": "array",
                        "items": {
                            "anyOf": [
                                {"$ref": _REF.format(name="ErrorInfo")},
                                {"$ref": _REF.format(name="BadRequest")},
                                {"$ref": _REF.format(name="RetryInfo")},
                                {
                                    "type": "object",
                                    "properties": {"@type": _ANY_TYPE},
                                    "required": ["@type"],
                                },
                            ]
                        },
                    },
                },
                "required": ["code", "status", "message", "details"],
            }
        },
        "required": ["error"],
    },
    "ErrorInfo": _detail(
        "ErrorInfo",
        {
            "reason": {"type": "string", "enum": sorted({error.reason for error in ERRORS})},
            "domain": {"type": "string"},
            "metadata": {"type": "object", "additionalProperties": {"type": "string"}},
        },
    ),
    "BadRequest": _detail(
        "BadRequest",
        {
            "fieldViolations": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {"field": {"type": "string"}, "description": {"type": "string"}},
                    "required": ["field", "description"],
                },
            }
        },
    ),
    "RetryInfo": _detail("RetryInfo", {"retryDelay": {"type": "string"}}),
    "OfVersionUnsaid": {
        "description": f"The answer of {versions.DEFAULT_VERSION} to a request without a version.",
        "type": "object",
        "not": {"required": ["error"]},
    },
}


@cache
def _error_responses() -> Json:
    by_status: dict[int, list[str]] = {status: [words] for status, words in _BY_HTTP.items()}
    for error in ERRORS:
        by_status.setdefault(error.http_status, []).append(_error_summary(error))
    content = _json({"schema": {"$ref": _REF.format(name="Status")}})
    errors: Json = {
        f"Error{status}": {"description": "\n".join(words), "content": content}
        for status, words in sorted(by_status.items())
    }
    versionless = {f"{name}{_OF_ANY}": _or_versionless(error) for name, error in errors.items()}
    return errors | versionless


def _error_summary(error: type[A2AError]) -> str:
    return f"{error.reason}: {_first_words(error.__doc__)}"


def _refs(ending: str) -> Json:
    return {
        name.removeprefix("Error").removesuffix(ending): {"$ref": f"#/components/responses/{name}"}
        for name in _error_responses()
        if name.endswith(_OF_ANY) == bool(ending)
    }


_ERRORS, _VERSIONLESS_ERRORS = _refs(""), _refs(_OF_ANY)
