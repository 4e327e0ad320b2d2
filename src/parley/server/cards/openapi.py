"""The OpenAPI 3.1 document of an agent: its HTTP+JSON binding, for tools.

It is made from the table of operations, the schemas of the data model and the agent's card, and
leaves out undeclared capabilities.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec

from parley.extensions.declared import FILE_TRANSFER, CompositionPicture
from parley.model.cards import AgentCard, OAuthFlows, SecurityScheme
from parley.model.errors import ERRORS, A2AError
from parley.model.extensions import Extension
from parley.model.operations import OPERATIONS, Operation, SendMessageResponse, StreamResponse
from parley.model.parts import Part
from parley.model.service import A2AService
from parley.model.struct import A2AStruct, Timestamp
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

# Types with exactly one member set.
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
    405: "The path exists, but for another verb.",
    413: "The body is larger than the server accepts.",
    415: "The body is not declared as JSON.",
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
    """Return whether a request without a version is accepted too, as another version."""
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
        "description": "Server-sent events of the schema below. An error is the last one.",
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
            "description": "The URIs of the extensions to activate, separated by commas.",
            "schema": {"type": "string"},
        },
        "Last-Event-ID": {
            "name": "Last-Event-ID",
            "in": "header",
            "description": "The id of the last received event: the stream begins after it.",
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
    """Return a member's schema without the marks of optional members."""
    schema = {key: value for key, value in schema.items() if key != "default"}
    if "anyOf" in schema:
        schema = next(each for each in schema["anyOf"] if each.get("type") != "null")
    return {**schema, **_NARROWER.get(name, {})}


def _first_words(text: str | None) -> str:
    """Return the first paragraph of a docstring."""
    words = " ".join((text or "").partition("\n\n")[0].split())
    return words.replace("``", "`").replace("(specification ", "(")


# -- errors ------------------------------------------------------------------------------------

_ANY_TYPE = {"type": "string", "description": "The type of this detail."}


def _detail(name: str, properties: Json) -> Json:
    kind = {"type": "string", "const": f"type.googleapis.com/google.rpc.{name}"}
    return {
        "type": "object",
        "properties": {"@type": kind, **properties},
        "required": ["@type", *properties],
    }


_ERROR_SCHEMAS: Json = {
    "Status": {
        "description": "The reason for rejecting a request: a google.rpc.Status.",
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


# -- security schemes -------------------------------------------------------------------------


def security_of(card: AgentCard) -> tuple[Json, list[Json]]:
    """Return the security schemes and requirements of a card that OpenAPI can describe."""
    schemes = {}
    for name, scheme in card.security_schemes.items():
        described = _scheme(scheme)
        if described is not None:
            schemes[name] = described
    requirements = [
        {name: list(scopes.list) for name, scopes in need.schemes.items()}
        for need in card.security_requirements
        if all(name in schemes for name in need.schemes)
    ]
    return schemes, requirements


def _scheme(scheme: SecurityScheme) -> Json | None:
    described: Json
    if (key := scheme.api_key_security_scheme) is not None:
        described = {"type": "apiKey", "in": key.location, "name": key.name}
        description = key.description
    elif (http := scheme.http_auth_security_scheme) is not None:
        described = {"type": "http", "scheme": http.scheme.lower()}
        if http.bearer_format:
            described["bearerFormat"] = http.bearer_format
        description = http.description
    elif (oauth := scheme.oauth2_security_scheme) is not None:
        flows = _flows(oauth.flows)
        if not flows:
            return None
        described, description = {"type": "oauth2", "flows": flows}, oauth.description
    elif (connect := scheme.open_id_connect_security_scheme) is not None:
        described = {"type": "openIdConnect", "openIdConnectUrl": connect.open_id_connect_url}
        description = connect.description
    else:
        mutual = scheme.mtls_security_scheme
        described, description = {"type": "mutualTLS"}, mutual.description if mutual else ""
    return {**described, "description": description} if description else described


def _flows(flows: OAuthFlows) -> Json:
    """Return the flows that OpenAPI 3.1 supports; it has no device flow."""
    known = ("authorization_code", "client_credentials", "implicit", "password")
    members = {"authorizationUrl", "tokenUrl", "refreshUrl", "scopes"}
    found = {}
    for field in msgspec.structs.fields(flows):
        flow = getattr(flows, field.name)
        if flow is not None and field.name in known:
            described: Json = msgspec.to_builtins(flow)
            found[field.encode_name] = {
                "scopes": {},
                **{key: described[key] for key in members & described.keys()},
            }
    return found


# -- files ------------------------------------------------------------------------------------

_STRING: Json = {"type": "string"}
_COUNT: Json = {"type": "integer", "minimum": 0}
_ID: Json = {"type": "string", "pattern": "^[0-9a-f]{48}$"}
_PATH_ID: Json = {"name": "id", "in": "path", "required": True, "schema": _ID}
_ERROR: Json = {
    "application/json": {
        "schema": {"type": "object", "properties": {"error": _STRING}, "required": ["error"]}
    }
}
_BYTES: Json = {"*/*": {"schema": {"type": "string", "format": "binary"}}}
_FILE_ERRORS = {
    "304": "The caller already has this version.",
    "400": "The request is malformed.",
    "401": "Credentials are missing or were rejected.",
    "403": "The caller is known but may not do this.",
    "404": "There is no such file, it is not the caller's, or the signature is not valid.",
    "409": "The upload continues at another offset: see Upload-Offset.",
    "412": "The file is another version than If-Match names.",
    "413": "The file would be larger than announced or allowed.",
    "415": "The Content-Type is not application/json.",
    "416": "The file has no bytes in this range.",
    "422": "The bytes do not have the announced digest.",
    "429": "The caller has too many files that no message refers to.",
    "500": "The server failed; its log says why.",
    "503": "The server is too busy now; try again later.",
}
_OFFSETS: Json = {
    "Upload-Offset": {"description": "The number of durable bytes.", "schema": _COUNT},
    "Upload-Complete": {"schema": {"type": "string", "enum": ["?0", "?1"]}},
}


def file_paths(card: AgentCard) -> Json:
    """Return the paths of files, empty for a card that does not declare them."""
    if all(each.uri != FILE_TRANSFER for each in card.capabilities.extensions):
        return {}
    return {
        "/files": {"post": _BEGIN},
        "/files/{id}": {"get": _download("DownloadFile"), "head": _download("DescribeFile")},
        "/files/{id}/upload": {"patch": _APPEND, "head": _STATUS},
    }


def _header(name: str, description: str, schema: Json = _STRING, *, required: bool = False) -> Json:
    return {
        "name": name,
        "in": "header",
        "required": required,
        "description": description,
        "schema": schema,
    }


def _signature(*, required: bool) -> Json:
    return {
        "name": "signature",
        "in": "query",
        "required": required,
        "description": "The signature of the address.",
        "schema": _STRING,
    }


def _file_errors(*statuses: str, has_body: bool = True) -> Json:
    body = {"content": _ERROR} if has_body else {}
    return {
        status: {"description": _FILE_ERRORS[status], **(body if status >= "4" else {})}
        for status in statuses
    }


def _download(name: str) -> Json:
    is_head = name == "DescribeFile"
    parameters = [
        _PATH_ID,
        _signature(required=False),
        _header("If-None-Match", "The ETag of a version that the caller has."),
        _header("If-Match", "The ETag of the only version that is wanted."),
    ]
    if not is_head:
        parameters += [
            _header("Range", "One range of bytes; several are answered with the whole file."),
            _header("If-Range", "The ETag of the version to which the range belongs."),
        ]
    content = {} if is_head else {"content": _BYTES}
    answers: Json = {"200": {"description": "The file.", **content}}
    if not is_head:
        answers["206"] = {"description": "A range of the file.", **content}
    others = ("304", "400", "401", "403", "404", "412", "500", "503")
    ranges = () if is_head else ("416",)
    return {
        "operationId": name,
        "summary": "Describe a file." if is_head else "Download a file.",
        "parameters": parameters,
        "responses": {**answers, **_file_errors(*others, *ranges, has_body=not is_head)},
    }


_BEGIN: Json = {
    "operationId": "BeginUpload",
    "summary": "Begin the upload of a file that is too large for a message.",
    "parameters": [],
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "filename": {"type": "string", "maxLength": 255},
                        "mediaType": {"type": "string", "maxLength": 127},
                        "size": {"type": ["integer", "null"], "minimum": 0},
                        "sha256": {"type": "string", "pattern": "^([0-9a-f]{64})?$"},
                    },
                }
            }
        },
    },
    "responses": {
        "201": {
            "description": "The upload has begun: url is for a part, uploadUrl accepts the bytes.",
            "content": {
                "application/json": {
                    "schema": {
                        "type": "object",
                        "properties": {
                            "id": _ID,
                            "url": {"type": "string", "format": "uri"},
                            "uploadUrl": {"type": "string", "format": "uri"},
                            "expiresAt": {"type": "string", "format": "date-time"},
                        },
                        "required": ["id", "url", "uploadUrl", "expiresAt"],
                    }
                }
            },
        },
        **_file_errors("400", "401", "403", "404", "413", "415", "429", "500", "503"),
    },
}

_APPEND: Json = {
    "operationId": "AppendToUpload",
    "summary": "Append bytes to an upload.",
    "parameters": [
        _PATH_ID,
        _signature(required=True),
        _header(
            "Upload-Offset", "The offset of the first byte of the body.", _COUNT, required=True
        ),
        _header(
            "Upload-Complete",
            "?1 with the last bytes of a file without an announced size.",
            {"type": "string", "enum": ["?0", "?1"]},
        ),
    ],
    "requestBody": {"content": {"application/octet-stream": {}}},
    "responses": {
        "204": {"description": "The bytes are durable.", "headers": _OFFSETS},
        **_file_errors("400", "404", "409", "413", "422", "500", "503"),
    },
}

_STATUS: Json = {
    "operationId": "DescribeUpload",
    "summary": "Return the progress of an upload.",
    "parameters": [_PATH_ID, _signature(required=True)],
    "responses": {
        "200": {"description": "The progress.", "headers": _OFFSETS},
        **_file_errors("404", "422", "500", "503", has_body=False),
    },
}
