"""Serves operations over HTTP: who calls, how much they may, what they send, what they get."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from starlette.types import Receive, Scope, Send

from parley.database.errors import StoreUnavailable
from parley.model.errors import A2AError, PermissionDeniedError, UnauthenticatedError
from parley.model.ids import log_incident
from parley.model.service import ANONYMOUS, Caller
from parley.registry.app.operations import Needs, Operation, RestAnswer, RestError, RestRequest
from parley.registry.app.viewers import OPERATE, is_operator, viewer_of
from parley.security.authentication import Authenticator
from parley.security.authorization import refusal
from parley.security.credentials.client_address import client_address
from parley.security.evidence import Evidence
from parley.security.limits.agent_limits import AgentLimits
from parley.security.schemes.scheme import Security
from parley.server.address import BadAddress, route_path, server_address
from parley.server.app import App
from parley.server.http.exchange import error_headers
from parley.server.http.paths import segments_of
from parley.server.http.responses import (
    NO_STORE,
    BodyTooLarge,
    ClientGone,
    read_body,
    reply,
    reply_without_body,
)
from parley.server.http.responses import base as base_type
from parley.server.restrictions import caller_headers

_log = logging.getLogger("parley.registry")

MAX_QUERY = 8 * 1024
MAX_PARAMETERS = 20

_POLICY = (
    b"default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'self'; "
    b"base-uri 'none'; frame-ancestors 'none'"
)
_HTML = ((b"content-security-policy", _POLICY), (b"referrer-policy", b"no-referrer"))
_NOSNIFF = (b"x-content-type-options", b"nosniff")

NO_CREDENTIALS = (
    "nothing is published anonymously, and this registry verifies no credentials: start it with "
    "some (parley registry serve --api-keys, --oidc ISSUER or --mtls)"
)


class Rules:
    """Who may use the operations of a registry.

    ``own`` is what its callers prove themselves with, ``None`` if nothing is verified; with
    ``is_public`` everyone may search.
    """

    def __init__(self, own: Security | None, *, is_public: bool) -> None:
        self.own = own
        self.is_public = is_public or own is None

    def check(self, operation: Operation, caller: Caller, challenges: Sequence[str]) -> None:
        """Raise ``UnauthenticatedError`` or ``PermissionDeniedError`` for who may not."""
        needs = operation.needs
        if needs is Needs.SEARCHER and self.is_public:
            return
        if self.own is None:
            raise UnauthenticatedError(NO_CREDENTIALS, challenges=tuple(challenges))
        if not self.own.is_met(caller):
            error = refusal(self.own, caller, f"the operation {operation.name}")
            if isinstance(error, UnauthenticatedError):
                words = "credentials are required here; the registry's card says which"
                raise UnauthenticatedError(words, challenges=tuple(challenges))
            raise error
        if needs is not Needs.SEARCHER and not (caller.authenticated and caller.owner):
            words = "this needs credentials that say who you are"
            raise UnauthenticatedError(words, challenges=tuple(challenges))
        if needs is Needs.OPERATOR and not is_operator(caller):
            raise PermissionDeniedError(f"this is for operators: it needs the scope {OPERATE}")


class RestRoutes:
    """The ASGI app of operations, by path and method."""

    def __init__(
        self,
        operations: Iterable[Operation],
        app: Callable[[], App],
        rules: Rules,
        *,
        limits: AgentLimits | None = None,
    ) -> None:
        self._exact: dict[str, dict[str, Operation]] = {}
        self._patterns: dict[str, list[tuple[tuple[str, ...], dict[str, Operation]]]] = {}
        self.operations = tuple(operations)
        for each in self.operations:
            self._methods_of(each.path)[each.method] = each
        self._app = app
        self._rules = rules
        self._limits = limits
        self._varies: bytes | None = None

    def _methods_of(self, path: str) -> dict[str, Operation]:
        if "{" not in path:
            return self._exact.setdefault(path, {})
        segments = tuple(path.split("/")[1:])
        patterns = self._patterns.setdefault(segments[0], [])
        for known, methods in patterns:
            if known == segments:
                return methods
        patterns.append((segments, {}))
        return patterns[-1][1]

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths without parameters."""
        return tuple(self._exact)

    @property
    def roots(self) -> tuple[str, ...]:
        """The paths below which there are paths with parameters."""
        return tuple(f"/{each}" for each in self._patterns)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        operation: Operation | None = None
        try:
            operation, parameters = self._find(scope)
            answer = await self._answer(operation, parameters, scope, receive)
        except ClientGone:
            return
        except BodyTooLarge:
            most = operation.max_body if operation is not None else 0
            error = RestError(413, f"the body has more than the {most} bytes allowed here")
            await self._refuse(scope, send, error)
        except RestError as error:
            await self._refuse(scope, send, error)
        except BadAddress as error:
            await self._refuse(scope, send, RestError(400, str(error)))
        except A2AError as error:
            headers = tuple(error_headers(error))
            await self._refuse(scope, send, RestError(error.http_status, error.message, headers))
        except StoreUnavailable as error:
            reference = log_incident(_log, "reading the index of the registry", error)
            words = f"the registry cannot reach its index now (reference {reference}); try again"
            await self._refuse(scope, send, RestError(503, words, ((b"retry-after", b"2"),)))
        except Exception:
            name = operation.name if operation is not None else "a request"
            reference = log_incident(_log, name)
            words = f"the registry failed; its log says why under the reference {reference}"
            await self._refuse(scope, send, RestError(500, words))
        else:
            await self._send(scope, send, answer)

    def _find(self, scope: Scope) -> tuple[Operation, dict[str, str]]:
        """Return the operation of a request and the path's parameters. Raises ``RestError``."""
        path, method = route_path(scope), scope["method"]
        segments: Sequence[str] = path.split("/")[1:]
        methods, parameters = self._exact.get(path), dict[str, str]()
        if b"%" in (scope.get("raw_path") or b""):
            segments = segments_of(scope, scope["path"].removesuffix(path))
            methods = methods if segments == tuple(path.split("/")[1:]) else None
        if methods is None and segments:
            for pattern, found in self._patterns.get(segments[0], ()):
                matched = _matched(pattern, segments)
                if matched is not None:
                    methods, parameters = found, matched
                    break
        if methods is None:
            raise RestError(404, f"nothing is at {path[:200]}; /openapi.json says what there is")
        operation = methods.get("GET" if method == "HEAD" else method)
        if operation is None:
            allowed = ", ".join(sorted({*methods, *(["HEAD"] if "GET" in methods else [])}))
            headers = ((b"allow", allowed.encode()),)
            raise RestError(405, f"{path[:200]} takes {allowed}, not {method[:20]}", headers)
        return operation, parameters

    async def _answer(
        self, operation: Operation, path: dict[str, str], scope: Scope, receive: Receive
    ) -> RestAnswer:
        app = self._app()
        if not app.lifecycle.started:
            await app.lifecycle.start_late()
        gate = app.gate("agents")
        if gate is not None and not gate.is_visible(scope):
            raise RestError(404, "nothing is here")
        caller, challenges = await self._caller(app, scope)
        self._rules.check(operation, caller, challenges)
        trusts = app.settings.trust_proxy
        fields: tuple[tuple[bytes, bytes], ...] = ()
        if self._limits is not None:
            grant = self._limits.begin(operation.name, caller, _Sender(scope, trusts))
            grant.of_tenant("")
            await grant.settle()
            fields = tuple((name.encode(), value.encode()) for name, value in grant.fields)
        headers = {name: value for name, value in scope["headers"]}
        body = b""
        if operation.request is not None:
            declared = headers.get(b"content-type", b"")
            if base_type(declared) != b"application/json":
                shown = declared[:60].decode("latin-1") or "none"
                raise RestError(415, f"the body is JSON (application/json), and this is {shown}")
            length = headers.get(b"content-length")
            body = await read_body(receive, scope, length, operation.max_body, app.request_bytes)
        request = RestRequest(
            path=path,
            query=_query(operation, scope.get("query_string", b"")),
            headers={
                name.decode("latin-1"): value.decode("latin-1") for name, value in headers.items()
            },
            body=body,
            caller=caller,
            viewer=viewer_of(caller),
            base=(app.url or server_address(scope, trust_proxy=trusts)).rstrip("/"),
            address=client_address(scope, trust_proxy=trusts),
        )
        answer = await operation.handler(request)
        if fields:
            answer = msgspec.structs.replace(answer, headers=(*answer.headers, *fields))
        return answer

    async def _caller(self, app: App, scope: Scope) -> tuple[Caller, tuple[str, ...]]:
        identify = app.identify
        if identify is None:
            return ANONYMOUS, ()
        found = identify(scope)
        caller = found if isinstance(found, Caller) else await found
        if isinstance(identify, Authenticator):
            return caller, identify.challenges(Evidence(scope))
        return caller, ()

    async def _send(self, scope: Scope, send: Send, answer: RestAnswer) -> None:
        body = answer.body if isinstance(answer.body, bytes) else msgspec.json.encode(answer.body)
        headers = [*answer.headers, _NOSNIFF]
        if answer.media_type.startswith("text/html"):
            headers += _HTML
        if answer.max_age is None:
            headers.append(NO_STORE)
        else:
            etag = b'"' + hashlib.sha256(body).hexdigest()[:32].encode() + b'"'
            who = b"public" if self._rules.own is None else b"private"
            headers += [
                (b"etag", etag),
                (b"cache-control", b"%s, max-age=%d" % (who, answer.max_age)),
            ]
            if varies := self._vary():
                headers.append((b"vary", varies))
            if answer.status == 200 and _is_known(scope, etag):
                await reply_without_body(send, 304, headers)
                return
        if answer.status == 204:
            await reply_without_body(send, 204, headers)
        elif scope["method"] == "HEAD":
            headers.append((b"content-type", answer.media_type.encode()))
            await reply_without_body(send, answer.status, headers)
        else:
            await reply(send, answer.status, body, headers, answer.media_type.encode())

    async def _refuse(self, scope: Scope, send: Send, error: RestError) -> None:
        if error.status == 405 and scope["method"] == "OPTIONS":
            await reply_without_body(send, 204, [*error.headers])
            return
        body = {"errorCode": error.code, "message": error.message}
        headers = [NO_STORE, _NOSNIFF, *error.headers]
        if scope["method"] == "HEAD":
            await reply_without_body(send, error.status, headers)
        else:
            await reply(send, error.status, msgspec.json.encode(body), headers)

    def _vary(self) -> bytes:
        if self._varies is None:
            self._varies = b", ".join(caller_headers(self._app().identify))
        return self._varies


class _Sender(msgspec.Struct, frozen=True):
    scope: Any
    trusts_proxy: bool

    def sender(self) -> str:
        """Return the address of the sender."""
        return client_address(self.scope, trust_proxy=self.trusts_proxy)


def _matched(pattern: Sequence[str], segments: Sequence[str]) -> dict[str, str] | None:
    """Return the parameters of a path, ``None`` if it is not of a pattern."""
    if len(pattern) != len(segments):
        return None
    found: dict[str, str] = {}
    for expected, given in zip(pattern, segments, strict=True):
        if expected[:1] == "{":
            if not given:
                return None
            found[expected[1:-1]] = given
        elif expected != given:
            return None
    return found


def _query(operation: Operation, raw: bytes) -> Mapping[str, str]:
    """Return the query, whose parameters an operation knows. Raises ``RestError``."""
    if not raw:
        return {}
    if len(raw) > MAX_QUERY:
        raise RestError(400, f"a query has at most {MAX_QUERY} bytes")
    try:
        pairs = parse_qsl(
            raw.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=MAX_PARAMETERS,
        )
    except ValueError:
        raise RestError(400, "the query of this address cannot be read") from None
    found: dict[str, str] = {}
    for name, value in pairs:
        if name not in operation.parameters:
            known = ", ".join(operation.parameters) or "none"
            raise RestError(400, f"there is no parameter {name[:40]!r}; there are: {known}")
        if name in found:
            raise RestError(400, f"{name} is given twice")
        found[name] = value
    return found


def _is_known(scope: Scope, etag: bytes) -> bool:
    """Return whether a request names the ETag that it would get."""
    for name, value in scope["headers"]:
        if name == b"if-none-match":
            tags = [each.strip().removeprefix(b"W/") for each in value.split(b",")]
            return etag in tags or b"*" in tags
    return False
