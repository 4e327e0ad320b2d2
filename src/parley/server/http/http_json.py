"""HTTP+JSON, listening (specification §11)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from urllib.parse import parse_qsl

from starlette.types import Receive, Scope, Send

from parley.model.errors import A2AError, InvalidParamsError, VersionNotSupportedError
from parley.model.extensions import Extension
from parley.model.requests import SendMessageRequest
from parley.model.service import Caller
from parley.server.address import route_path
from parley.server.dispatch import ServiceCall
from parley.server.http.exchange import Exchange, Surroundings, unsaid
from parley.server.http.jsonrpc import JsonRpcExchange
from parley.server.http.media_types import answered_with
from parley.server.http.paths import TENANT, Found, Paths, PathTarget, WrongVerb, segments_of
from parley.server.http.responses import reply_without_body
from parley.wire import jsonrpc, versions
from parley.wire.dialect import HttpJsonCodec, Route
from parley.wire.json import protojson

_MAX_PARAMETERS = 100
_NAMED = {version: (b"a2a-version", version.encode()) for version in versions.SUPPORTED_VERSIONS}


class HttpJsonBinding:
    """Answers the paths below an agent's address: those of all versions, and of all tenants.

    ``prefix`` are the segments of that address. ``extensions`` are those of the agent, whose
    methods have paths too.
    """

    def __init__(
        self,
        surroundings: Surroundings,
        prefix: Iterable[str],
        extensions: Iterable[Extension] = (),
    ) -> None:
        self._around = surroundings
        self._prefix = tuple(prefix)
        self._start = sum(len(segment) + 1 for segment in self._prefix)
        self._extensions = tuple(extensions)

    @cached_property
    def paths(self) -> Paths:
        """The paths that there are; versions are loaded when the first is asked for."""
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
            await HttpJsonExchange(self._around, scope, found).run(receive, send)

    def _find(self, scope: Scope) -> Found | A2AError:
        verb, path, here = scope["method"], scope["path"], route_path(scope)
        if b"%" not in (scope.get("raw_path") or b""):
            found = self.paths.at(verb, here[self._start :])
            if found is not None:
                return found
        try:
            mount = path[: len(path) - len(here)]
            return self.paths.find(verb, segments_of(scope, mount, self._prefix))
        except A2AError as error:
            return error


class HttpJsonExchange(Exchange):
    """One request at a path of its own.

    The path decides which version is spoken; what is at no path is refused in the version that it
    names.
    """

    codec: HttpJsonCodec

    def __init__(self, surroundings: Surroundings, scope: Scope, found: Found | A2AError) -> None:
        super().__init__(surroundings, scope)
        if isinstance(found, Found) and found.target.unnamed is not None:
            found = found._replace(target=self._meant(found.target, found.target.unnamed))
        self._found = found
        self._enveloped: JsonRpcExchange | None = None
        self.takes_body = False
        if isinstance(found, A2AError):
            version = self._named()
            if isinstance(found, WrongVerb):
                self.headers.append(_allow(found))
        else:
            version = found.target.version
            self.tenant = found.fields.pop(TENANT, "")
            self.takes_body = found.target.route.verb == "POST"
        caller = self.given.get(b"user-agent", b"").decode("latin-1")
        self.codec = versions.dialect(version).http_json.for_peer(caller)
        self.headers.append(_NAMED[version])
        self.media_type = answered_with(self.codec.media_type.encode(), scope["headers"])

    def _named(self) -> str:
        """Return the version that a request names, where it leads to nothing of any."""
        try:
            return self.asked_version() or versions.LATEST
        except A2AError:
            return versions.LATEST

    def _meant(self, target: PathTarget, unnamed: PathTarget) -> PathTarget:
        """Return what is meant by a path that older texts print with no version."""
        try:
            named = self.asked_version()
        except A2AError:
            return target
        missing = self.around.settings.missing_version
        return unnamed if not named and missing == unnamed.version else target

    def understand(self, body: bytes, caller: Caller) -> ServiceCall:
        """Return what is asked for. Raises ``A2AError``."""
        if isinstance(self._found, A2AError):
            raise self._found
        target, fields = self._found
        try:
            return self._understand(target, fields, body, caller)
        except A2AError:
            if target.route.operation.request is not SendMessageRequest or not _is_rpc(body):
                raise
        # Some post JSON-RPC to the path of a message: what they posted says how to answer.
        self._enveloped = JsonRpcExchange(self.around, self.scope, self.tenant)
        self.media_type = self._enveloped.media_type
        try:
            return self._enveloped.understand(body, caller)
        finally:
            self.codec = self._enveloped.codec  # type: ignore[assignment]
            self.headers = self._enveloped.headers
            self.silent = self._enveloped.silent

    def _understand(
        self, target: PathTarget, fields: dict[str, str], body: bytes, caller: Caller
    ) -> ServiceCall:
        self._check_version(target)
        if body:
            self.check_media_type()
            settings = self.around.settings
            protojson.check_limits(body, settings.max_depth, settings.max_parts)
        operation = target.route.operation
        parameters = self.parameters(target.version, caller)
        return self.around.dispatcher.call(
            operation,
            parameters,
            lambda: self.codec.read_request(target.route, fields, self._query(), body),
        )

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
            words = f"the query has more than {_MAX_PARAMETERS} parameters"
            raise InvalidParamsError(words) from None

    def _check_version(self, target: PathTarget) -> None:
        """Refuse a path that is not of the version that is asked for."""
        asked = self.asked_version()
        version = target.version
        if asked == version:
            return
        shown = f"{target.route.verb} {target.route.path}"
        if asked:
            raise _of_another(target, asked)
        if version not in (versions.DEFAULT_VERSION, self.around.settings.missing_version):
            raise unsaid(shown)

    def whole(self, result: bytes) -> bytes:
        """Return the body around a result: nothing is, but for who sent an envelope."""
        return result if self._enveloped is None else self._enveloped.whole(result)

    def refusal(self, error: A2AError) -> tuple[int, bytes]:
        """Return status and body for an error."""
        if self._enveloped is not None:
            return self._enveloped.refusal(error)
        return error.http_status, self.codec.write_error(error)


def _is_rpc(body: bytes) -> bool:
    """Whether a body is a request of JSON-RPC, for which another way was meant."""
    try:
        jsonrpc.parse_request(body)
    except A2AError:
        return False
    return True


def _of_another(target: PathTarget, asked: str) -> VersionNotSupportedError:
    """Return the refusal of a path that is of another version than a request names."""
    operation = target.route.operation
    words = f"{target.route.verb} {target.route.path} is of version {target.version}; "
    for other in versions.dialect(asked).http_json.routes:
        if other.operation is operation and not other.alias:
            words += f"in version {asked}, which the request names, it is {other.verb} {other.path}"
            break
    else:
        words += f"version {asked}, which the request names, has no {operation.name}"
    metadata = {
        "requestedVersion": asked,
        "supportedVersions": ", ".join(versions.SUPPORTED_VERSIONS),
    }
    return VersionNotSupportedError(words, metadata=metadata)


def _allow(error: WrongVerb) -> tuple[bytes, bytes]:
    return b"allow", ", ".join(error.allowed).encode()
