"""The paths of files in the OpenAPI document of an agent whose server keeps files."""

from __future__ import annotations

from typing import Any

from parley.extensions.declared import FILE_TRANSFER
from parley.model.cards import AgentCard

Json = dict[str, Any]

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
_ERRORS = {
    "304": "The caller has this version.",
    "400": "The request is malformed.",
    "401": "Credentials are missing or were refused.",
    "403": "The caller is known but may not do this.",
    "404": "There is no such file, it is not the caller's, or the signature is not valid.",
    "409": "The upload continues at another offset: see Upload-Offset.",
    "412": "The file is another version than If-Match names.",
    "413": "The file would be larger than announced or allowed.",
    "415": "The Content-Type is not application/json.",
    "416": "The file has no bytes in this range.",
    "422": "The bytes do not have the announced digest.",
    "429": "The caller has too many files that no message has named.",
    "500": "The server failed; its log says why.",
    "503": "The server has no room for this now; try again later.",
}
_OFFSETS: Json = {
    "Upload-Offset": {"description": "How many bytes are durable.", "schema": _COUNT},
    "Upload-Complete": {"schema": {"type": "string", "enum": ["?0", "?1"]}},
}


def file_paths(card: AgentCard) -> Json:
    """Return the paths of files, none for a card that does not declare them."""
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


def _errors(*statuses: str, has_body: bool = True) -> Json:
    body = {"content": _ERROR} if has_body else {}
    return {
        status: {"description": _ERRORS[status], **(body if status >= "4" else {})}
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
            _header("If-Range", "The ETag of the version that the range is of."),
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
        "responses": {**answers, **_errors(*others, *ranges, has_body=not is_head)},
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
            "description": "The upload has begun: url goes into a part, uploadUrl takes the bytes.",
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
        **_errors("400", "401", "403", "404", "413", "415", "429", "500", "503"),
    },
}

_APPEND: Json = {
    "operationId": "AppendToUpload",
    "summary": "Append bytes to an upload.",
    "parameters": [
        _PATH_ID,
        _signature(required=True),
        _header("Upload-Offset", "The place of the first byte of the body.", _COUNT, required=True),
        _header(
            "Upload-Complete",
            "?1 with the last bytes of a file without an announced size.",
            {"type": "string", "enum": ["?0", "?1"]},
        ),
    ],
    "requestBody": {"content": {"application/octet-stream": {}}},
    "responses": {
        "204": {"description": "The bytes are durable.", "headers": _OFFSETS},
        **_errors("400", "404", "409", "413", "422", "500", "503"),
    },
}

_STATUS: Json = {
    "operationId": "DescribeUpload",
    "summary": "Say how far an upload is.",
    "parameters": [_PATH_ID, _signature(required=True)],
    "responses": {
        "200": {"description": "How far it is.", "headers": _OFFSETS},
        **_errors("404", "422", "500", "503", has_body=False),
    },
}
