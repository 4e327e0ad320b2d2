"""Malformed requests, and the errors in response."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.kit.http import call

LIMIT = 200_000
MESSAGE = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hello"}]}


def with_data(value: str) -> bytes:
    """A request with this JSON as its data."""
    return call("SendMessage", {"message": {**MESSAGE, "parts": [{"data": "@"}]}}).replace(
        b'"@"', value.encode("utf-8", "surrogatepass")
    )


GOOD = call("SendMessage", {"message": MESSAGE})

# Each request, its error code, and words from the error message.
MALFORMED: dict[str, tuple[bytes, int, str]] = {
    "nothing": (b"", -32700, "empty"),
    "blanks": (b" \n", -32700, "empty"),
    "words": (b"hello", -32700, "not JSON"),
    "invalid UTF-8": (GOOD.replace(b"hello", b"h\xffllo"), -32700, "not UTF-8"),
    "overlong UTF-8": (GOOD.replace(b"hello", b"\xc0\xaf"), -32700, "not UTF-8"),
    "UTF-16": (GOOD.decode().encode("utf-16"), -32700, "UTF-8"),
    "half a surrogate pair": (GOOD.replace(b"hello", b"\\ud800"), -32700, "escape"),
    "a control character": (GOOD.replace(b"hello", b"a\nb"), -32700, "not JSON"),
    "cut off": (GOOD[:-2], -32700, "ends too early"),
    "cut in a string": (GOOD[: GOOD.index(b"hello") + 2], -32700, "ends too early"),
    "more after the end": (GOOD + b"}", -32700, "not JSON"),
    "two requests": (GOOD + GOOD, -32700, "not JSON"),
    "a batch": (b"[" + GOOD + b"]", -32600, "no batches"),
    "an empty batch": (b"[]", -32600, "no batches"),
    "a string": (b'"SendMessage"', -32600, "object"),
    "null": (b"null", -32600, "object"),
    "another version of JSON-RPC": (GOOD.replace(b'"2.0"', b'"1.0"'), -32600, "2.0"),
    "a number for a version": (GOOD.replace(b'"2.0"', b"2.0"), -32600, "2.0"),
    "no method": (b'{"jsonrpc": "2.0", "id": 1}', -32600, "method"),
    "an object for a method": (GOOD.replace(b'"SendMessage"', b"{}"), -32600, "method"),
    "an object for an id": (GOOD.replace(b'"id": 1', b'"id": {}'), -32600, "id must be"),
    "a fraction for an id": (GOOD.replace(b'"id": 1', b'"id": 1.5'), -32600, "id must be"),
    "an unknown method": (call("Frobnicate"), -32601, "SendMessage"),
    "a method of 0.3": (call("message/send"), -32601, "0.3"),
    "a list for params": (
        b'{"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": [{}]}', -32602, "object"
    ),
    "no params": (b'{"jsonrpc": "2.0", "id": 1, "method": "SendMessage"}', -32602, "message"),
    "NaN": (with_data("NaN"), -32700, "not JSON"),
    "Infinity": (with_data("-Infinity"), -32700, "not JSON"),
    "a number too large": (with_data("1e400"), -32602, "too large"),
    "an integer of 5,000 digits": (with_data("9" * 5000), -32602, "too large"),
    "nested too deeply": (with_data("[" * 150 + "]" * 150), -32602, "deep"),
    "nested beyond reason": (with_data("[" * 90_000 + "]" * 90_000), -32600, "deep"),
    "brackets without end": (b"[" * LIMIT, -32600, ""),
    "too many parts": (
        call("SendMessage", {"message": {**MESSAGE, "parts": [{"text": ""}] * 1001}}),
        -32602, "1000 parts",
    ),
    "no parts": (call("SendMessage", {"message": {**MESSAGE, "parts": []}}), -32602, "parts"),
    "a part of nothing": (
        call("SendMessage", {"message": {**MESSAGE, "parts": [{}]}}), -32602, "parts[0]"
    ),
    "a part of two kinds": (
        call("SendMessage", {"message": {**MESSAGE, "parts": [{"text": "", "url": "u"}]}}),
        -32602, "exactly one",
    ),
    "bad base64": (
        call("SendMessage", {"message": {**MESSAGE, "parts": [{"raw": "!"}]}}), -32602, "raw"
    ),
    "the agent's role": (
        call("SendMessage", {"message": {**MESSAGE, "role": "ROLE_AGENT"}}), -32602, "role"
    ),
    "an unknown role": (
        call("SendMessage", {"message": {**MESSAGE, "role": "ROLE_KING"}}), -32602, "role"
    ),
    "an unknown skill": (
        call("SendMessage", {"message": {**MESSAGE, "metadata": {"skill": ["x"]}}}),
        -32602, "repeat",
    ),
    "a negative history": (
        call("SendMessage", {"message": MESSAGE, "configuration": {"historyLength": -1}}),
        -32602, "historyLength",
    ),
    "a webhook": (
        call("SendMessage", {"message": MESSAGE, "configuration":
             {"taskPushNotificationConfig": {"url": "http://10.0.0.1/"}}}),
        -32602, "configuration.taskPushNotificationConfig.url",
    ),
    "an unknown task": (call("GetTask", {"id": "nobody"}), -32001, "nobody"),
    "an unknown task's stream": (call("SubscribeToTask", {"id": "nobody"}), -32001, "nobody"),
    "an unknown task to cancel": (call("CancelTask", {"id": "\x01"}), -32001, "no task"),
    "an unknown task to go on with": (
        call("SendMessage", {"message": {**MESSAGE, "taskId": "x" * 512}}), -32001, "no task"
    ),
    "an id with U+0000": (call("CancelTask", {"id": "\0"}), -32602, "U+0000"),
    "a long id": (
        call("SendMessage", {"message": {**MESSAGE, "taskId": "x" * 513}}), -32602, "512 bytes"
    ),
    "no task": (call("GetTask", {"id": ""}), -32602, "id"),
    "a page of fewer than none": (call("ListTasks", {"pageSize": -1}), -32602, "pageSize"),
    "a page of too many": (call("ListTasks", {"pageSize": 101}), -32602, "pageSize"),
    "a page of more than 32 bits": (call("ListTasks", {"pageSize": 2**40}), -32602, "pageSize"),
    "an unknown state": (call("ListTasks", {"status": "DONE"}), -32602, "status"),
    "a bad moment": (call("ListTasks", {"statusTimestampAfter": "now"}), -32602, "statusTimestamp"),
    "an extended card": (call("GetExtendedAgentCard"), -32004, "extended"),
    "a list of webhooks": (
        call("ListTaskPushNotificationConfigs", {"taskId": "x", "pageSize": -1}), -32602, "pageSize"
    ),
}  # fmt: skip


# Valid requests with every field of every operation, and values that most fields reject.
FULL: dict[str, dict[str, Any]] = {
    "SendMessage": {
        "tenant": "",
        "message": {
            "messageId": "m",
            "contextId": "c",
            "taskId": "",
            "role": "ROLE_USER",
            "parts": [
                {"text": "t", "metadata": {"a": 1}, "filename": "f", "mediaType": "text/plain"},
                {"raw": "AAAA"},
                {"url": "https://files.example/a"},
                {"data": {"a": [1, None]}},
            ],
            "metadata": {"a": 1},
            "extensions": ["urn:x"],
            "referenceTaskIds": ["t"],
        },
        "configuration": {
            "acceptedOutputModes": ["text/plain"],
            "historyLength": 1,
            "returnImmediately": False,
        },
        "metadata": {"a": 1},
    },
    "GetTask": {"tenant": "", "id": "t", "historyLength": 1},
    "ListTasks": {
        "tenant": "",
        "contextId": "c",
        "status": "TASK_STATE_WORKING",
        "pageSize": 5,
        "pageToken": "",
        "historyLength": 1,
        "statusTimestampAfter": "2026-01-01T00:00:00Z",
        "includeArtifacts": True,
    },
    "CancelTask": {"tenant": "", "id": "t", "metadata": {"a": 1}},
    "SubscribeToTask": {"tenant": "", "id": "t"},
}
WRONG = (5, -1, 1.5, 10**30, "x", "\0", "", True, None, [], {}, [5], ["x"], [None], {"a": 1}, [[]])


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every member of a value, at any depth."""
    members = value.items() if isinstance(value, dict) else enumerate(value)
    for key, member in members:
        yield (*path, key)
        if isinstance(member, dict | list) and key not in ("metadata", "data"):
            yield from places(member, (*path, key))
