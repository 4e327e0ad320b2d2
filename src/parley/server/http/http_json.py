"""The HTTP+JSON binding of the server (specification §11)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property, partial
from typing import Any
from urllib.parse import parse_qsl

from starlette.types import Receive, Scope, Send

from parley.model.errors import A2AError, InvalidParamsError, VersionNotSupportedError
from parley.model.extensions import Extension
from parley.model.operations import SendMessageRequest
from parley.model.service import Caller
from parley.server.address import route_path
from parley.server.dispatch import ServiceCall
from parley.server.http.exchange import (
    VERSION_HEADERS,
    AgentHandler,
    AgentRequests,
    Exchange,
    HeadFields,
    ServedEndpoint,
    version_missing,
)
from parley.server.http.jsonrpc import JsonRpcExchange
from parley.server.http.paths import (
    TENANT,
    Found,
    NoSuchPath,
    Paths,
    PathTarget,
    WrongVerb,
    segments_of,
)
from parley.server.http.responses import answered_with, reply_without_body
from parley.wire import jsonrpc, versions
from parley.wire.json import legacy, protojson
from parley.wire.json.syntax import Bytes
from parley.wire.versions import HttpJsonCodec, Route

_MAX_PARAMETERS = 100


class HttpJsonBinding(AgentHandler):
    """Answers the paths below an agent's address, of all versions and tenants.

    ``prefix`` are the segments of that address. ``extensions`` are the agent's; their methods have
    paths too.
    """

    def __init__(
        self, served: ServedEndpoint, prefix: Iterable[str], extensions: Iterable[Extension] = ()
    ) -> None:
        self._served = served
        self._prefix = tuple(prefix)
        self._start = sum(len(segment) + 1 for segment in self._prefix)
        self._extensions = tuple(extensions)

    @cached_property
    def paths(self) -> Paths:
        """All paths. The first access loads the versions."""
        routes = [
            (version, route)
            for version in versions.SUPPORTED_VERSIONS
            for route in versions.dialect(version).http_json.routes
        ]
        for extension in self._extensions:
            for method in extension.methods:
                operation = method.operation
                routes.append((versions.LATEST, Route(operation.verb, operation.path, operation)))
        unnamed = [
            (version, route)
            for version in versions.SUPPORTED_VERSIONS
            for route in versions.dialect(version).http_json.versionless_routes
        ]
        return Paths(routes, unnamed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        found = self._find(scope)
        if isinstance(found, WrongVerb) and scope["method"] == "OPTIONS":
            await reply_without_body(send, 204, [_allow(found)])
        else:
            await HttpJsonExchange(self._served, scope, found).run(receive, send)

    def requests(self, scope: Scope) -> AgentRequests | None:
        """Return the requests to the agent with the head of a scope."""
        found, served = self._find(scope), self._served
        if not isinstance(found, Found):
            return None
        target, path = found

        def exchange(fields: HeadFields) -> HttpJsonExchange:
            own = Found(target, dict(path))  # a copy, since the exchange removes the tenant
            return HttpJsonExchange(served, scope, own, fields)

        return AgentRequests(served, scope, exchange)

    def _find(self, scope: Scope) -> Found | A2AError:
        verb, path, below_mount = scope["method"], scope["path"], route_path(scope)
        if b"%" not in (scope.get("raw_path") or b""):
            found = self.paths.find_literal(verb, below_mount[self._start :])
            if found is not None:
                return found
        try:
            mount = path[: len(path) - len(below_mount)]
            return self.paths.find(verb, segments_of(scope, mount, self._prefix))
        except A2AError as error:
            return error


class HttpJsonExchange(Exchange):
    """One request whose path names the operation.

    The path decides the version. A request to an unknown path is rejected in the version that it
    names.
    """

    system = "http_json"
    codec: HttpJsonCodec

    def __init__(
        self,
        served: ServedEndpoint,
        scope: Scope,
        found: Found | A2AError,
        fields: HeadFields | None = None,
    ) -> None:
        super().__init__(served, scope, fields=fields)
        if isinstance(found, Found) and found.target.unnamed is not None:
            found = found._replace(target=self._resolve_unnamed(found.target, found.target.unnamed))
        self._found = found
        self._jsonrpc: JsonRpcExchange | None = None
        self.takes_body = False
        if isinstance(found, A2AError):
            version = self._error_version()
            self.takes_body = isinstance(found, NoSuchPath) and bool(found.tenant)
            if isinstance(found, WrongVerb):
                self.response_headers.append(_allow(found))
        else:
            version = found.target.version
            self.tenant = found.fields.pop(TENANT, "")
            self.takes_body = found.target.route.verb == "POST"
        user_agent = self.fields.headers.get(b"user-agent", b"").decode("latin-1")
        self.codec = versions.dialect(version).http_json.for_peer(user_agent)
        self.response_headers.append(VERSION_HEADERS[version])
        self.media_type = answered_with(self.codec.media_type.encode(), scope["headers"])

    def _error_version(self) -> str:
        """Return the version of the error for an unknown path."""
        try:
            return self.requested_version() or versions.LATEST
        except A2AError:
            return versions.LATEST

    def _resolve_unnamed(self, target: PathTarget, unnamed: PathTarget) -> PathTarget:
        """Return the target of a path of two versions, for requests without a version (old
        examples)."""
        try:
            requested = self.requested_version()
        except A2AError:
            return target
        missing = self.served.settings.missing_version
        return unnamed if not requested and missing == unnamed.version else target

    def parse(self, body: bytes, caller: Caller) -> ServiceCall:
        """Return the call that the request asks for. Raises ``A2AError``."""
        if isinstance(self._found, A2AError):
            if not (isinstance(self._found, NoSuchPath) and self._found.tenant and _is_rpc(body)):
                raise self._found
            self.tenant = self._found.tenant
            return self._parse_rpc(body, caller)
        target, fields = self._found
        try:
            return self._parse_path(target, fields, body, caller)
        except A2AError:
            if target.route.operation.request is not SendMessageRequest or not _is_rpc(body):
                raise
        # Some clients post JSON-RPC to the path of a message: they are answered in JSON-RPC.
        return self._parse_rpc(body, caller)

    def _parse_rpc(self, body: bytes, caller: Caller) -> ServiceCall:
        """Return the call of a JSON-RPC request at a path of HTTP+JSON, or of a tenant."""
        self._jsonrpc = JsonRpcExchange(self.served, self.scope, self.tenant, self.fields)
        self.media_type = self._jsonrpc.media_type
        try:
            return self._jsonrpc.parse(body, caller)
        finally:
            self.codec = self._jsonrpc.codec  # type: ignore[assignment]
            self.response_headers = self._jsonrpc.response_headers
            self.is_notification = self._jsonrpc.is_notification

    def _parse_path(
        self, target: PathTarget, fields: dict[str, str], body: bytes, caller: Caller
    ) -> ServiceCall:
        self._check_version(target)
        if body:
            if not self.fields.is_json:
                self.refuse_media_type()
            settings = self.served.settings
            protojson.check_limits(body, settings.max_depth, settings.max_parts)
        operation = target.route.operation
        parameters = self.parameters(target.version, caller)

        def read(body: Bytes) -> Any:
            return self.codec.read_request(target.route, fields, self._query(), body)

        missing = self.served.settings.missing_version
        if body and target.version == missing == versions.LATEST:
            mixed = partial(legacy.read_mixed, read, body)
            return self.served.dispatcher.call(operation, parameters, mixed)
        return self.served.dispatcher.call(operation, parameters, lambda: read(body))

    def _query(self) -> list[tuple[str, str]]:
        query: bytes = self.scope["query_string"]
        if not query:
            return []
        try:
            return parse_qsl(
                query.decode("ascii"),
                keep_blank_values=True,
                errors="strict",
                max_num_fields=_MAX_PARAMETERS,
            )
        except UnicodeDecodeError:
            raise InvalidParamsError("the query is not UTF-8, percent-encoded") from None
        except ValueError:
            message = f"the query has more than {_MAX_PARAMETERS} parameters"
            raise InvalidParamsError(message) from None

    def _check_version(self, target: PathTarget) -> None:
        """Raise ``VersionNotSupportedError`` for a path of another version than requested."""
        requested = self.requested_version()
        version = target.version
        if requested == version:
            return
        if requested:
            raise _other_version(target, requested)
        if version not in (versions.DEFAULT_VERSION, self.served.settings.missing_version):
            raise version_missing(f"{target.route.verb} {target.route.path}")

    def wrap(self, result: bytes) -> bytes:
        """Return the result unchanged, unless the request had an envelope."""
        return result if self._jsonrpc is None else self._jsonrpc.wrap(result)

    def error_response(self, error: A2AError) -> tuple[int, bytes]:
        """Return the status and the body of an error."""
        if self._jsonrpc is not None:
            return self._jsonrpc.error_response(error)
        return error.http_status, self.codec.write_error(error)


def _is_rpc(body: bytes) -> bool:
    """Return whether a body is a JSON-RPC request, sent to the wrong address."""
    try:
        jsonrpc.parse_request(body)
    except A2AError:
        return False
    return True


def _other_version(target: PathTarget, requested: str) -> VersionNotSupportedError:
    """Return the error for a path of another version than a request names."""
    operation = target.route.operation
    message = f"{target.route.verb} {target.route.path} is of version {target.version}; "
    for other in versions.dialect(requested).http_json.routes:
        if other.operation is operation and not other.alias:
            message += (
                f"in version {requested}, which the request names, it is {other.verb} {other.path}"
            )
            break
    else:
        message += f"version {requested}, which the request names, has no {operation.name}"
    metadata = {
        "requestedVersion": requested,
        "supportedVersions": ", ".join(versions.SUPPORTED_VERSIONS),
    }
    return VersionNotSupportedError(message, metadata=metadata)


def _allow(error: WrongVerb) -> tuple[bytes, bytes]:
    return b"allow", ", ".join(error.allowed).encode()
