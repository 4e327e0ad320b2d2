"""JSON-RPC 2.0 over HTTP, listening (specification §9)."""

from __future__ import annotations

from collections.abc import Awaitable

import msgspec
from starlette.types import Receive, Scope, Send

from parley.model.errors import (
    A2AError,
    MethodNotFoundError,
    OverloadedError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from parley.model.operations import Operation
from parley.model.service import Caller
from parley.server.dispatch import ServiceCall
from parley.server.http.exchange import Exchange, NotJson, Surroundings, TooLarge, unsaid
from parley.server.http.responses import NO_STORE, refuse_method
from parley.wire import jsonrpc, versions
from parley.wire.dialect import JsonRpcCodec
from parley.wire.json import protojson

# Errors that HTTP has a status for that proxies and clients act on; all others are 200, as
# JSON-RPC wants.
_WITH_STATUS = (UnauthenticatedError, PermissionDeniedError, OverloadedError, NotJson, TooLarge)
_LATEST = versions.dialect(versions.LATEST).jsonrpc
_NAMED = {version: (b"a2a-version", version.encode()) for version in versions.SUPPORTED_VERSIONS}


class JsonRpcBinding:
    """Answers JSON-RPC requests to one agent, or to one tenant of an endpoint."""

    def __init__(self, surroundings: Surroundings, tenant: str = "") -> None:
        self._around = surroundings
        self._tenant = tenant

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Answer one HTTP request."""
        if scope["method"] != "POST":
            words = "this is the address of an A2A agent: send it JSON-RPC 2.0 requests with POST"
            return refuse_method(scope, send, "POST", words)
        return JsonRpcExchange(self._around, scope, self._tenant).run(receive, send)


class JsonRpcExchange(Exchange):
    """One request with a JSON-RPC envelope."""

    codec: JsonRpcCodec

    def __init__(self, surroundings: Surroundings, scope: Scope, tenant: str = "") -> None:
        super().__init__(surroundings, scope, tenant)
        self._id: msgspec.Raw | None = None
        self._speak(versions.LATEST)

    def _speak(self, version: str) -> None:
        if version == versions.LATEST:
            self.codec = _LATEST
        else:
            self.codec = versions.dialect(version).jsonrpc
        self.headers = [_NAMED[version], NO_STORE]

    def understand(self, body: bytes, caller: Caller) -> ServiceCall:
        """Return what is asked for. Raises ``A2AError``."""
        self.check_media_type()
        try:
            rpc = jsonrpc.parse_request(body)
        except A2AError:
            self._id = jsonrpc.request_id(body)
            raise
        self._id, self.silent = rpc.id, rpc.is_notification
        settings = self.around.settings
        protojson.check_limits(body, settings.max_depth, settings.max_parts)
        operation, version = self._operation(rpc.method)
        parameters = self.parameters(version, caller)
        params, read = rpc.params or b"{}", self.codec.read_request
        return self.around.dispatcher.call(operation, parameters, lambda: read(operation, params))

    def _operation(self, method: str) -> tuple[Operation, str]:
        """Return what a method's name means, and in which version it is spoken."""
        asked = self.asked_version()
        version = asked or versions.DEFAULT_VERSION
        if version != versions.LATEST:
            self._speak(version)
        operation = self.codec.methods.get(method)
        if operation is not None:
            return operation, version
        latest = versions.dialect(versions.LATEST).jsonrpc.methods.get(method)
        latest = latest or self.around.dispatcher.method(method, self.tenant)
        if latest is not None and version == versions.LATEST:
            return latest, version  # a method of an extension
        if latest is not None and not asked:
            if self.around.settings.missing_version == versions.LATEST:
                self._speak(versions.LATEST)
                return latest, versions.LATEST
            raise unsaid(f"the method {method}")
        raise _no_such_method(method, version)

    def whole(self, result: bytes) -> bytes:
        """Return the response around a result."""
        return jsonrpc.response(self._id, result)

    def refusal(self, error: A2AError) -> tuple[int, bytes]:
        """Return status and body for an error."""
        status = error.http_status if isinstance(error, _WITH_STATUS) else 200
        return status, jsonrpc.error_response(self._id, self.codec.write_error(error))


def _no_such_method(name: str, version: str) -> MethodNotFoundError:
    methods = versions.dialect(version).jsonrpc.names.values()
    words = f"version {version} has no method {name[:60]!r}"
    alike = _alike(name, version)
    if alike is not None:
        words += f"; what it has is {alike}"
    words += f"; its methods are {', '.join(methods)}"
    for other in versions.SUPPORTED_VERSIONS:
        if other != version and name in versions.dialect(other).jsonrpc.methods:
            words += f". With the header A2A-Version: {other} there is one of this name"
    return MethodNotFoundError(words)


def _alike(name: str, version: str) -> str | None:
    """Return the method of a version that a name of any version, however spelled, stands for."""
    wanted = _letters(name[:60])
    for each in versions.SUPPORTED_VERSIONS:
        for method, operation in versions.dialect(each).jsonrpc.methods.items():
            if _letters(method) == wanted:
                return versions.dialect(version).jsonrpc.names.get(operation.name)
    return None


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name)).lower()
