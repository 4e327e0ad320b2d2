"""A caller for each binding and version that builds its requests from bytes.

Requests and responses are dictionaries in the JSON of the version. For gRPC, protobuf's own codec
converts them, with descriptors made from the facts of the specification.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode
from uuid import uuid4

import grpc
from google.protobuf import json_format

from tests.contract.choices.told import (
    KINDS,
    Answer,
    Event,
    Events,
    nothing,
    refused,
    refused_over_grpc,
)
from tests.kit.http import WAIT, Connection, Response, connection
from tests.wire.json.oracle import facts, message_class

_PUSHES = "/tasks/{task}/pushNotificationConfigs"
PATHS = {
    "SendMessage": ("POST", "/message:send"),
    "SendStreamingMessage": ("POST", "/message:stream"),
    "GetTask": ("GET", "/tasks/{task}"),
    "ListTasks": ("GET", "/tasks"),
    "CancelTask": ("POST", "/tasks/{task}:cancel"),
    "SubscribeToTask": ("POST", "/tasks/{task}:subscribe"),
    "CreateTaskPushNotificationConfig": ("POST", _PUSHES),
    "GetTaskPushNotificationConfig": ("GET", _PUSHES + "/{config}"),
    "ListTaskPushNotificationConfigs": ("GET", _PUSHES),
    "DeleteTaskPushNotificationConfig": ("DELETE", _PUSHES + "/{config}"),
    "GetExtendedAgentCard": ("GET", "/extendedAgentCard"),
}
OLD_METHODS = {
    "SendMessage": "message/send",
    "SendStreamingMessage": "message/stream",
    "GetTask": "tasks/get",
    "CancelTask": "tasks/cancel",
    "SubscribeToTask": "tasks/resubscribe",
    "CreateTaskPushNotificationConfig": "tasks/pushNotificationConfig/set",
    "GetTaskPushNotificationConfig": "tasks/pushNotificationConfig/get",
    "ListTaskPushNotificationConfigs": "tasks/pushNotificationConfig/list",
    "DeleteTaskPushNotificationConfig": "tasks/pushNotificationConfig/delete",
    "GetExtendedAgentCard": "agent/getAuthenticatedExtendedCard",
}
OLD_RPCS = {
    "SubscribeToTask": "TaskSubscription",
    "ListTaskPushNotificationConfigs": "ListTaskPushNotificationConfig",
    "GetExtendedAgentCard": "GetAgentCard",
}


class Place(NamedTuple):
    """A server's address: its URL, and ``host:port`` for gRPC."""

    url: str
    grpc: str


class Wire:
    """A raw caller of a server in one binding and version, on behalf of ``user``.

    ``library`` is the user agent of requests. If empty, it names the HTTP library of the official
    Python clients.
    """

    def __init__(self, place: Place, binding: str, version: str, user: str = "ada") -> None:
        self.place = place
        self.binding = binding
        self.version = version
        self.is_old = version == "0.3"
        self.headers = {"A2A-Version": version, "x-user": user}
        self.library = "some-library/1.0"

    def of(self, user: str) -> Wire:
        """The same caller with another user."""
        return Wire(self.place, self.binding, self.version, user)

    # -- operations ----------------------------------------------------------------------------

    @property
    def is_proto(self) -> bool:
        """Whether requests follow the proto of 0.3, which differs from the JSON of 0.3."""
        return self.is_old and self.binding != "JSONRPC"

    def message(self, said: str | list[Any], **more: Any) -> dict[str, Any]:
        """A message with a text, or with parts in the form of 1.0."""
        parts = [{"text": said}] if isinstance(said, str) else said
        given = {"messageId": uuid4().hex, **more}
        if self.is_proto:
            return {"role": "ROLE_USER", "content": [_proto_part(p) for p in parts], **given}
        if self.is_old:
            old = [_old_part(part) for part in parts]
            return {"kind": "message", "role": "user", "parts": old, **given}
        return {"role": "ROLE_USER", "parts": parts, **given}

    def sending(
        self,
        said: str | list[Any],
        *,
        at_once: bool = False,
        configuration: Mapping[str, Any] = {},
        **message: Any,
    ) -> dict[str, Any]:
        """The members of a ``SendMessage`` request."""
        how: dict[str, Any] = {"blocking": not at_once} if self.is_old else {}
        if at_once and not self.is_old:
            how = {"returnImmediately": True}
        return {"message": self.message(said, **message), "configuration": {**how, **configuration}}

    async def send(self, said: str | list[Any], **more: Any) -> Answer:
        """Send a message. The result is the task or the direct message."""
        answer = await self.ask("SendMessage", self.sending(said, **more))
        if answer.result is None or (self.is_old and self.binding == "JSONRPC"):
            return answer
        (value,) = answer.result.values()
        return answer._replace(result=value)

    async def task(self, said: str, **more: Any) -> dict[str, Any]:
        """Send a message that creates a task, and return the task."""
        answer = await self.send(said, **more)
        assert answer.result is not None, answer
        assert "status" in answer.result, answer
        return answer.result

    async def get(self, task_id: str) -> Any:
        """Fetch the current task."""
        return (await self.ask("GetTask", task=task_id)).result

    def webhook(self, url: str, **more: Any) -> dict[str, Any]:
        """The members of a request that creates a webhook: ``id``, ``token``, ``secret``."""
        config = self.config(url, **more)
        if not self.is_old:
            return config
        if self.binding == "JSONRPC":
            return {"pushNotificationConfig": config}
        return {"config": {"pushNotificationConfig": config}}

    def config(
        self, url: str, *, id: str = "", token: str = "", secret: str = ""
    ) -> dict[str, Any]:
        """A webhook configuration, as a message also carries it."""
        config: dict[str, Any] = {"url": url}
        config.update({name: value for name, value in (("id", id), ("token", token)) if value})
        if secret:
            scheme = {"schemes": ["Bearer"]} if self.is_old else {"scheme": "Bearer"}
            config["authentication"] = {**scheme, "credentials": secret}
        return config

    async def ask(
        self,
        operation: str,
        members: Mapping[str, Any] = {},
        *,
        task: str = "",
        config: str = "",
        headers: Mapping[str, str] = {},
    ) -> Answer:
        """Call an operation without a stream."""
        if self.binding == "GRPC":
            members = {**self._named(operation, task, config), **members}
            return await self._call(operation, members, {**self.headers, **headers})
        async with connection(self.place.url) as http:
            await self._request(http, operation, members, task, config, headers)
            return self._read(await http.response())

    @asynccontextmanager
    async def events(
        self, operation: str, members: Mapping[str, Any] = {}, *, task: str = ""
    ) -> AsyncIterator[Events]:
        """Stream the events of an operation."""
        if self.binding == "GRPC":
            async with self._called(
                operation, {**self._named(operation, task, ""), **members}
            ) as e:
                yield e
            return
        async with connection(self.place.url) as http:
            await self._request(http, operation, members, task, "", {})
            status, headers = await http.head()
            if headers.get("content-type") == "text/event-stream":
                assert status == 200
                events = Events(self._framed(http))
                events.headers = headers
            else:
                body = await http.reader.readexactly(int(headers["content-length"]))
                refusal = self._read(Response(status, headers, body))
                events = Events(nothing(), refusal)
            yield events

    def subscribing(self, task_id: str) -> Any:
        """Stream the events of a task."""
        return self.events("SubscribeToTask", task=task_id)

    def streaming(self, said: str | list[Any], **more: Any) -> Any:
        """Stream the events of a message's reply."""
        return self.events("SendStreamingMessage", self.sending(said, **more))

    # -- over HTTP -----------------------------------------------------------------------------

    async def _request(
        self,
        http: Connection,
        operation: str,
        members: Mapping[str, Any],
        task: str,
        config: str,
        headers: Mapping[str, str],
    ) -> None:
        given = {**self.headers, "Content-Type": "application/json", **headers}
        given["User-Agent"] = self.library or "python-httpx/0.28.1"
        if self.binding == "JSONRPC":
            method = OLD_METHODS.get(operation, operation) if self.is_old else operation
            params = {**self._named(operation, task, config), **members}
            call = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            await http.request("POST", "/", json.dumps(call).encode(), given)
            return
        verb, path = PATHS[operation]
        if self.is_old:
            path = "/v1/card" if operation == "GetExtendedAgentCard" else f"/v1{path}"
        path = path.format(task=quote(task, safe=""), config=quote(config, safe=""))
        body = json.dumps(members).encode() if verb == "POST" else b""
        query = f"?{urlencode(members)}" if members and verb != "POST" else ""
        await http.request(verb, path + query, body, given)

    def _read(self, response: Response) -> Answer:
        status, headers, body = response
        value = json.loads(body)
        if self.binding == "JSONRPC":
            if "error" in value:
                return refused(status, headers, body, value["error"], value["error"]["data"])
            return Answer(status, headers, body, value["result"])
        if status == 200:
            return Answer(status, headers, body, value)
        error = value if self.is_old else value["error"]
        return refused(status, headers, body, error, error["data" if self.is_old else "details"])

    async def _framed(self, http: Connection) -> AsyncIterator[Event]:
        async for frame in http.frames():
            data = json.loads(frame.partition("data: ")[2])
            if self.binding == "JSONRPC":
                data = data.get("result", data)
            if "kind" in data:
                yield Event(KINDS[data["kind"]], data)
            else:
                ((kind, value),) = [each for each in data.items() if each[0] in KINDS.values()]
                yield Event(kind, value)

    # -- over gRPC -----------------------------------------------------------------------------

    def _named(self, operation: str, task: str, config: str) -> dict[str, str]:
        """Return the ids of a task and a webhook as a request without paths names them."""
        if operation in ("SendMessage", "SendStreamingMessage", "ListTasks") or not task:
            return {}
        is_push = "Push" in operation
        creates = operation.startswith("Create")
        if self.is_proto:
            if creates:
                return {"parent": f"tasks/{task}", "configId": config}
            if operation.startswith("ListTaskPush"):
                return {"parent": f"tasks/{task}"}
            return {"name": f"tasks/{task}" + (f"/pushNotificationConfigs/{config}" * is_push)}
        if not is_push:
            return {"id": task}
        if creates:
            return {"taskId": task}
        names = ("id", "pushNotificationConfigId") if self.is_old else ("taskId", "id")
        return {names[0]: task, **({names[1]: config} if config else {})}

    def rpc(self, operation: str) -> tuple[str, str, str]:
        """The path of a call, and the names of its request and response types."""
        known = facts("v0_3" if self.is_old else "v1")
        name = OLD_RPCS.get(operation, operation) if self.is_old else operation
        (method,) = [each for each in known["service"]["methods"] if each["name"] == name]
        request, answer = (method[way].rpartition(".")[2] for way in ("input", "output"))
        return f"/{known['package']}.A2AService/{name}", request, answer

    def packed(self, name: str, members: Mapping[str, Any]) -> bytes:
        """Encode a proto message from its JSON."""
        message = message_class(name, "v0_3" if self.is_old else "v1")()
        json_format.ParseDict(dict(members), message)
        return message.SerializeToString()

    def unpacked(self, name: str, data: bytes) -> Any:
        """Decode a proto message to its JSON."""
        message = message_class(name, "v0_3" if self.is_old else "v1").FromString(data)
        return json_format.MessageToDict(message)

    def _channel(self) -> Any:
        options = [("grpc.primary_user_agent", self.library)] if self.library else []
        return grpc.aio.insecure_channel(self.place.grpc, options=options)

    async def _call(
        self, operation: str, members: Mapping[str, Any], headers: Mapping[str, str]
    ) -> Answer:
        path, request, answer = self.rpc(operation)
        return await self.raw_call(path, self.packed(request, members), headers, answer)

    async def raw_call(
        self, path: str, data: bytes, headers: Mapping[str, str], answer: str = "Task"
    ) -> Answer:
        """Make a gRPC call with raw bytes."""
        metadata = tuple((name.lower(), value) for name, value in headers.items())
        async with self._channel() as channel:
            call = channel.unary_unary(path)(data, metadata=metadata, timeout=WAIT)
            try:
                body = await call
            except grpc.aio.AioRpcError as error:
                return refused_over_grpc(error)
            initial = dict(await call.initial_metadata())
        return Answer("OK", initial, body, self.unpacked(answer, body))

    @asynccontextmanager
    async def _called(self, operation: str, members: Mapping[str, Any]) -> AsyncIterator[Events]:
        path, request, answer = self.rpc(operation)
        metadata = tuple((name.lower(), value) for name, value in self.headers.items())
        async with self._channel() as channel:
            call = channel.unary_stream(path)(self.packed(request, members), metadata=metadata)

            async def items(first: Any) -> AsyncIterator[Event]:
                data = first
                while data is not grpc.aio.EOF:
                    ((kind, value),) = self.unpacked(answer, data).items()
                    yield Event(kind, value)
                    data = await call.read()

            try:
                first = await asyncio.wait_for(call.read(), WAIT)
            except grpc.aio.AioRpcError as error:
                yield Events(nothing(), refused_over_grpc(error))
            else:
                yield Events(items(first))
            call.cancel()


def _old_part(part: Mapping[str, Any]) -> dict[str, Any]:
    if "text" in part:
        return {"kind": "text", **part}
    if "data" in part:
        return {"kind": "data", **part}
    names = {"raw": "bytes", "url": "uri", "mediaType": "mimeType", "filename": "name"}
    return {"kind": "file", "file": {names[name]: value for name, value in part.items()}}


def _proto_part(part: Mapping[str, Any]) -> dict[str, Any]:
    if "data" in part:
        return {"data": {"data": part["data"]}}
    if "text" in part:
        return dict(part)
    names = {"raw": "fileWithBytes", "url": "fileWithUri", "mediaType": "mimeType"}
    return {"file": {names[name]: value for name, value in part.items() if name in names}}
