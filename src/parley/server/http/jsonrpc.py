"""The JSON-RPC 2.0 binding of the server (specification §9)."""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial

import msgspec
from starlette.types import Receive, Scope, Send

from parley.model.errors import (
    A2AError,
    MethodNotFoundError,
    OverloadedError,
    PermissionDeniedError,
    TooManyRequestsError,
    UnauthenticatedError,
)
from parley.model.operations import Operation
from parley.model.service import Caller
from parley.server.dispatch import ServiceCall
from parley.server.http.exchange import (
    VERSION_HEADERS,
    AgentHandler,
    AgentRequests,
    Exchange,
    NotJson,
    ServedEndpoint,
    version_missing,
)
from parley.server.http.responses import NO_STORE, BodyTooLarge, refuse_method
from parley.wire import jsonrpc, versions
from parley.wire.json import legacy, protojson
from parley.wire.versions import JsonRpcCodec

# Errors with an HTTP status that proxies and clients act on. All others are sent with 200, as
# JSON-RPC specifies.
_WITH_STATUS = (
    UnauthenticatedError,
    PermissionDeniedError,
    OverloadedError,
    TooManyRequestsError,
    NotJson,
    BodyTooLarge,
)
_LATEST = VERSION_HEADERS[versions.LATEST]


class JsonRpcBinding(AgentHandler):
    """Answers JSON-RPC requests to one agent, or to one tenant of an endpoint."""

    def __init__(self, served: ServedEndpoint, tenant: str = "") -> None:
        self._served = served
        self._tenant = tenant

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Answer one HTTP request."""
        if scope["method"] != "POST":
            message = "this is the address of an A2A agent: send it JSON-RPC 2.0 requests with POST"
            return refuse_method(scope, send, "POST", message)
        return JsonRpcExchange(self._served, scope, self._tenant).run(receive, send)

    def requests(self, scope: Scope) -> AgentRequests | None:
        """Return the requests to the agent with the head of a scope."""
        if scope["method"] != "POST":
            return None
        exchange = partial(JsonRpcExchange, self._served, scope, self._tenant)
        return AgentRequests(self._served, scope, exchange)


class JsonRpcExchange(Exchange):
    """One request with a JSON-RPC envelope."""

    system = "jsonrpc"
    codec: JsonRpcCodec = versions.dialect(versions.LATEST).jsonrpc
    first_headers = (_LATEST, NO_STORE)
    _id: msgspec.Raw | None = None

    def _use_version(self, version: str) -> None:
        self.codec = versions.dialect(version).jsonrpc
        self.response_headers = [VERSION_HEADERS[version], NO_STORE]

    def parse(self, body: bytes, caller: Caller) -> ServiceCall:
        """Return the call that the request asks for. Raises ``A2AError``."""
        if not self.fields.is_json:
            self.refuse_media_type()
        try:
            rpc = jsonrpc.parse_request(body)
        except A2AError:
            self._id = jsonrpc.request_id(body)
            raise
        self._id = rpc.id
        if not rpc.id:
            self.is_notification = True
        settings = self.served.settings
        protojson.check_limits(body, settings.max_depth, settings.max_parts)
        operation, version = self._operation(rpc.method)
        parameters = self.parameters(version, caller)
        params = rpc.params or b"{}"
        read = partial(self.codec.read_request, operation, params)
        if settings.missing_version == version == versions.LATEST:
            mixed = partial(self.codec.read_request, operation)
            read = partial(legacy.read_mixed, mixed, params)
        return self.served.dispatcher.call(operation, parameters, read)

    def _operation(self, method: str) -> tuple[Operation, str]:
        """Return the operation of a method, and the version of the request."""
        requested = self.requested_version()
        version = requested or versions.DEFAULT_VERSION
        if version != versions.LATEST:
            self._use_version(version)
        operation = self.codec.methods.get(method)
        if operation is not None:
            return operation, version
        latest = versions.dialect(versions.LATEST).jsonrpc.methods.get(method)
        latest = latest or self.served.dispatcher.extension_method(method, self.tenant)
        if latest is not None and version == versions.LATEST:
            return latest, version  # a method of an extension
        if latest is not None and not requested:
            if self.served.settings.missing_version == versions.LATEST:
                self._use_version(versions.LATEST)
                return latest, versions.LATEST
            raise version_missing(f"the method {method}")
        raise _no_such_method(method, version)

    def wrap(self, result: bytes) -> bytes:
        """Return the response envelope of a result."""
        return jsonrpc.response(self._id, result)

    def error_response(self, error: A2AError) -> tuple[int, bytes]:
        """Return the status and the envelope of an error."""
        status = error.http_status if isinstance(error, _WITH_STATUS) else 200
        return status, jsonrpc.error_response(self._id, self.codec.write_error(error))


def _no_such_method(name: str, version: str) -> MethodNotFoundError:
    methods = versions.dialect(version).jsonrpc.names.values()
    message = f"version {version} has no method {name[:60]!r}"
    similar = _similar_method(name, version)
    if similar is not None:
        message += f"; what it has is {similar}"
    message += f"; its methods are {', '.join(methods)}"
    for other in versions.SUPPORTED_VERSIONS:
        if other != version and name in versions.dialect(other).jsonrpc.methods:
            message += f". With the header A2A-Version: {other} there is one of this name"
    return MethodNotFoundError(message)


def _similar_method(name: str, version: str) -> str | None:
    """Return a version's method for a name of any version, ignoring case and punctuation."""
    wanted = _letters(name[:60])
    for each in versions.SUPPORTED_VERSIONS:
        for method, operation in versions.dialect(each).jsonrpc.methods.items():
            if _letters(method) == wanted:
                return versions.dialect(version).jsonrpc.names.get(operation.name)
    return None


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name)).lower()
