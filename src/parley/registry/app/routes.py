"""The REST interface: a table of operations, from which routes and the OpenAPI document are made.

An operation is a method that receives a ``RestRequest``, and raises an ``A2AError``.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from enum import Enum
from functools import partial
from time import perf_counter
from typing import Annotated, Any, TypeVar, get_type_hints
from urllib.parse import parse_qsl

import msgspec
from msgspec import Meta
from starlette.types import Receive, Scope, Send

from parley.database.errors import StoreUnavailable
from parley.model.cards import AgentCapabilities, AgentCard
from parley.model.distribution import VERSION
from parley.model.errors import (
    A2AError,
    InternalError,
    InvalidParamsError,
    OverloadedError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from parley.model.ids import log_incident
from parley.model.service import ANONYMOUS, Caller
from parley.observe import metrics
from parley.registry.catalog.entries import CatalogEntry
from parley.registry.publishing.callers import NotFoundError, tokens_of
from parley.registry.records import Viewer
from parley.security.authentication import Authenticator
from parley.security.authorization import refusal
from parley.security.evidence import Evidence
from parley.security.limits.agent_limits import AgentLimits
from parley.security.networks import client_address
from parley.security.schemes.scheme import Security
from parley.server.address import route_path, server_address
from parley.server.app import App
from parley.server.cards.openapi import security_of
from parley.server.http.exchange import NotJson
from parley.server.http.paths import segments_of
from parley.server.http.responses import (
    NO_STORE,
    ClientGone,
    error_headers,
    read_body,
    reply,
    reply_without_body,
)
from parley.server.http.responses import base as base_type
from parley.server.observed import OTHER
from parley.server.restrictions import caller_headers
from parley.wire.json.syntax import without_bom

# Callers of a registry: their view of entries, and whether they are operators.

OPERATE = "registry:operate"
"""The scope of operators."""


def is_operator(caller: Caller) -> bool:
    """Return whether a caller has the scope of operators."""
    return caller.authenticated and OPERATE in caller.scopes


def viewer_of(caller: Caller) -> Viewer:
    """Return the view of a caller. An unauthenticated caller sees public entries only."""
    if not caller.authenticated or not caller.owner:
        return Viewer()
    return Viewer(tokens=tokens_of(caller), sees_all=is_operator(caller))


# An operation of the REST interface, from which routes and the OpenAPI document are made.

MAX_BODY = 64 * 1024

ERROR_CODES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    405: "INVALID_ARGUMENT",
    409: "CONFLICT",
    413: "INVALID_ARGUMENT",
    415: "INVALID_ARGUMENT",
    429: "RATE_LIMIT_EXCEEDED",
    500: "INTERNAL_ERROR",
    503: "UNAVAILABLE",
}
"""The error code of each status: from ARD's OpenAPI document, or Parley's own."""


class Needs(Enum):
    """The callers that may use an operation."""

    SEARCHER = "searcher"
    """Everyone, unless the registry requires credentials for searches."""
    CALLER = "caller"
    """Authenticated callers. Nothing is published anonymously."""
    OPERATOR = "operator"
    """A caller with the scope ``registry:operate``."""


class RestRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request with its authenticated caller.

    ``path`` has the parameters of the path, ``query`` the query parameters, each at most once.
    ``headers`` have names in lower case. ``base`` is the address of the registry as the caller sees
    it, without a trailing slash; ``address`` is the address of the caller.
    """

    path: Mapping[str, str] = {}
    query: Mapping[str, str] = {}
    headers: Mapping[str, str] = {}
    caller: Caller = ANONYMOUS
    viewer: Viewer = Viewer()
    base: str = ""
    address: str = ""

    def number(self, name: str, default: int, *, most: int) -> int:
        """Return a query parameter as an integer from 1 to ``most``. Raises
        ``InvalidParamsError``.
        """
        text = self.query.get(name)
        if text is None:
            return default
        digits = text if text.isascii() and text.isdigit() and len(text) <= 12 else "0"
        if not 1 <= int(digits) <= most:
            raise InvalidParamsError(
                f"{name} is a whole number from 1 to {most}, not {text[:40]!r}"
            )
        return int(digits)


class RestAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A response. ``body`` is written as JSON, unless it is bytes of ``media_type``.

    With ``max_age`` (seconds) it has an ETag and may be cached; without ``max_age`` it may not.
    """

    body: Any = None
    status: int = 200
    media_type: str = "application/json"
    headers: tuple[tuple[bytes, bytes], ...] = ()
    max_age: int | None = None


def ref(name: str) -> dict[str, str]:
    """Return a reference to a component of the OpenAPI document."""
    return {"$ref": f"#/components/schemas/{name}"}


class RestOperation(msgspec.Struct, frozen=True, kw_only=True):
    """An operation: a method with the decorator ``operation``.

    ``name`` is the operationId, and its name in limits: ``publish_entries`` is publishEntries.
    ``path`` is below the registry, such as ``/agents/{identifier}``: a parameter is a whole
    segment. ``parameters`` are the query parameters by name, with their JSON Schema. The docstring
    is the summary and the description. An operation with a parameter ``body`` takes a JSON body of
    its type; ``what`` names the body in errors. The method's result is the body of the response,
    whose status is 200, or 201 or 204 if ``responses`` has it.
    """

    method: str
    path: str
    handler: Callable[..., Awaitable[Any]]
    name: str = ""
    summary: str = ""
    description: str = ""
    needs: Needs = Needs.SEARCHER
    parameters: Mapping[str, Mapping[str, Any]] = {}
    path_parameters: Mapping[str, Mapping[str, Any]] = {}
    what: str = "the body"
    request: Any = None
    response: Any = None
    responses: Mapping[int, str] = {}
    """Further statuses with their descriptions: 201, 404, 409."""
    max_age: int | None = None
    is_large: bool = False
    """If true, the body may be a whole catalog, larger than ``MAX_BODY`` bytes."""
    is_documented: bool = True
    is_open_here: bool = False
    """If true, a registry without authentication that serves this machine only allows it."""

    @property
    def status(self) -> int:
        """The status of a successful response."""
        return next((status for status in self.responses if status < 300), 200)

    @property
    def segments(self) -> list[str]:
        """The segments of the path."""
        return self.path.split("/")[1:]


F = TypeVar("F", bound=Callable[..., Any])


def operation(method: str, path: str, **more: Any) -> Callable[[F], F]:
    """Declare a method as an operation; see ``RestOperation``."""

    def declared(function: F) -> F:
        row = RestOperation(method=method, path=path, handler=function, **more)
        function.operation = row  # type: ignore[attr-defined]
        return function

    return declared


def operations_of(*parts: object) -> list[RestOperation]:
    """Return the operations among the methods of some objects."""
    found = []
    for part in parts:
        for name, function in vars(type(part)).items():
            row = getattr(function, "operation", None)
            if row is None:
                continue
            hints = get_type_hints(function, include_extras=True)
            summary, _, description = str(function.__doc__).partition("\n\n")
            first, *others = name.split("_")
            found.append(
                msgspec.structs.replace(
                    row,
                    handler=getattr(part, name),
                    name=first + "".join(map(str.capitalize, others)),
                    summary=summary.removesuffix("."),
                    description=" ".join(description.split()),
                    request=hints.get("body"),
                    response=None if row.status == 204 else hints["return"],
                )
            )
    return found


# The OpenAPI 3.1 document of a registry, made from its operations and the types of their bodies.


class Error(msgspec.Struct, rename="camel"):
    """An error."""

    error_code: Annotated[str, Meta(extra_json_schema={"enum": sorted({*ERROR_CODES.values()})})]
    message: str


_MEANINGS = {
    400: "The request is invalid; the message says how to correct it.",
    401: "Credentials are missing, or were rejected.",
    403: "These credentials do not allow this.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    429: "A limit is exceeded; Retry-After says how long to wait.",
    500: "The registry failed; search its log for the reference in the message.",
    503: "The registry is unavailable now.",
}


def openapi_document(
    operations: Iterable[RestOperation],
    *,
    title: str,
    base: str,
    security: Security | None,
    public: bool,
) -> dict[str, Any]:
    """Return the OpenAPI document. ``public``: searches need no credentials."""
    paths: dict[str, dict[str, Any]] = {}
    listed = [each for each in operations if each.is_documented]
    bodies = {body for each in listed for body in (each.request, each.response) if body}
    types = [Error, CatalogEntry, *sorted(bodies, key=str)]
    found, schemas = msgspec.json.schema_components(types, ref_template=ref("{name}")["$ref"])
    schema_of = dict(zip(types, found, strict=True))
    for schema in schemas.values():  # titles repeat the names, descriptions are for Python
        del schema["title"]
        schema.pop("description", None)
        for name in NOT_WRITTEN:
            schema.get("properties", {}).pop(name, None)
    schemes, required = _security(security)
    for each in listed:
        document = _operation(each, schema_of)
        if required:
            is_open = public and each.needs is Needs.SEARCHER
            document["security"] = [{}, *required] if is_open else required
        paths.setdefault(each.path, {})[each.method.lower()] = document
    components: dict[str, Any] = {"schemas": schemas}
    if schemes:
        components["securitySchemes"] = schemes
    return {
        "openapi": "3.1.0",
        "info": {
            "title": title,
            "version": VERSION,
            "description": "A registry of agents (Agentic Resource Discovery 0.91), with Parley's "
            "additions for publishers and operators.",
        },
        "servers": [{"url": base}],
        "paths": paths,
        "components": components,
    }


NOT_WRITTEN = ("more", "trustDocument")
"""Fields of an entry that are written as other members."""


def _operation(operation: RestOperation, schema_of: Mapping[Any, Any]) -> dict[str, Any]:
    document: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "responses": _responses(operation, schema_of),
    }
    if operation.description:
        document["description"] = operation.description
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": schema}
        for name, schema in operation.path_parameters.items()
    ]
    parameters += [
        {"name": name, "in": "query", "required": False, "schema": schema}
        for name, schema in operation.parameters.items()
    ]
    if parameters:
        document["parameters"] = parameters
    if operation.request is not None:
        content = {"application/json": {"schema": schema_of[operation.request]}}
        document["requestBody"] = {"required": True, "content": content}
    return document


def _responses(operation: RestOperation, schema_of: Mapping[Any, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    status = operation.status
    found[str(status)] = {"description": operation.responses.get(status, "Done.")}
    if operation.response is not None:
        content = {"application/json": {"schema": schema_of[operation.response]}}
        found[str(status)]["content"] = content
    errors = {400, 401, 403, 429, 500, 503}
    if operation.request is not None:
        errors |= {413, 415}
    for status in sorted(errors | {each for each in operation.responses if each >= 400}):
        words = operation.responses.get(status) or _MEANINGS.get(status, "The request is rejected.")
        found[str(status)] = {
            "description": words,
            "content": {"application/json": {"schema": schema_of[Error]}},
        }
        if status == 429:
            found["429"]["headers"] = {"Retry-After": {"schema": {"type": "integer"}}}
    if operation.parameters or operation.path_parameters:
        found["431"] = {"description": "The address is too long."}
    if 304 in operation.responses:
        found["304"] = {"description": operation.responses[304]}
    return found


def _security(security: Security | None) -> tuple[dict[str, Any], list[dict[str, list[str]]]]:
    """Return schemes and requirements in the form of OpenAPI."""
    if security is None:
        return {}, []
    card = AgentCard(
        name="",
        description="",
        version="",
        supported_interfaces=(),
        capabilities=AgentCapabilities(),
        default_input_modes=(),
        default_output_modes=(),
        skills=(),
        security_schemes={each.name: each.declared() for each in security.schemes},
        security_requirements=security.declared(),
    )
    return security_of(card)


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
    "publishing needs credentials, and this registry verifies none: start it with "
    "parley registry serve --api-keys, --oidc ISSUER or --mtls"
)


class MethodNotAllowed(InvalidParamsError):
    """The path exists, with other methods."""

    http_status = 405


class Rules:
    """The access rules of a registry's operations.

    ``own`` are the security requirements of callers, ``None`` if nothing is verified; with
    ``is_public`` everyone may search. ``is_here``: the registry serves this machine only.
    """

    def __init__(self, own: Security | None, *, is_public: bool, is_here: bool = False) -> None:
        self.own = own
        self.is_public = is_public or own is None
        self.is_here = is_here

    def check(self, operation: RestOperation, caller: Caller, challenges: Sequence[str]) -> None:
        """Raise ``UnauthenticatedError`` or ``PermissionDeniedError`` if the caller lacks
        permission.
        """
        needs = operation.needs
        if needs is Needs.SEARCHER and self.is_public:
            return
        if self.own is None and self.is_here and operation.is_open_here:
            return
        if self.own is None:
            raise UnauthenticatedError(NO_CREDENTIALS, challenges=tuple(challenges))
        if not self.own.is_met(caller):
            error = refusal(self.own, caller, f"the operation {operation.name}")
            if isinstance(error, UnauthenticatedError):
                words = "credentials are required; the registry's card lists the accepted kinds"
                raise UnauthenticatedError(words, challenges=tuple(challenges))
            raise error
        if needs is not Needs.SEARCHER and not (caller.authenticated and caller.owner):
            words = "this operation needs credentials that identify you"
            raise UnauthenticatedError(words, challenges=tuple(challenges))
        if needs is Needs.OPERATOR and not is_operator(caller):
            raise PermissionDeniedError(
                f"this operation is for operators: it needs the scope {OPERATE}"
            )


class RestRoutes:
    """The ASGI app of operations, by path and method."""

    def __init__(
        self,
        operations: Iterable[RestOperation],
        app: Callable[[], App],
        rules: Rules,
        *,
        catalog_bytes: int,
        limits: AgentLimits | None = None,
    ) -> None:
        self.operations = tuple(operations)
        self._app = app
        self._rules = rules
        self._catalog_bytes = catalog_bytes
        self._limits = limits
        self._varies: bytes | None = None

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths without parameters."""
        return tuple({each.path: None for each in self.operations if "{" not in each.path})

    @property
    def roots(self) -> tuple[str, ...]:
        """The prefixes of the paths with parameters."""
        return tuple({f"/{each.segments[0]}": None for each in self.operations if "{" in each.path})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        operation: RestOperation | None = None
        failure: A2AError | None = None
        began = perf_counter()
        try:
            operation, parameters = self._find(scope)
            answer = await self._answer(operation, parameters, scope, receive)
        except ClientGone:
            return
        except A2AError as error:
            failure = error
        except StoreUnavailable as error:
            reference = log_incident(_log, "reading the index of the registry", error)
            words = f"the registry cannot reach its index now (reference {reference}); try again"
            failure = OverloadedError(words, retry_after=2)
        except Exception:
            name = operation.name if operation is not None else "a request"
            reference = log_incident(_log, name)
            words = f"the registry failed; its log has the cause under the reference {reference}"
            failure = InternalError(words)
        if metrics.current is not None:
            name = OTHER if operation is None else operation.name
            error_name = "" if failure is None else type(failure).__name__
            metrics.current.of("registry", name, error_name).observe(perf_counter() - began)
        if failure is None:
            await self._send(scope, send, answer)
            return
        refusing = self._refuse(scope, send, failure)
        failure = None  # its traceback has this frame: a cycle
        await refusing

    def _find(self, scope: Scope) -> tuple[RestOperation, dict[str, str]]:
        """Return the operation of a request and the path's parameters. Raises ``A2AError``."""
        path, method = route_path(scope), scope["method"]
        segments: Sequence[str] = path.split("/")[1:]
        if b"%" in (scope.get("raw_path") or b""):
            segments = segments_of(scope, scope["path"].removesuffix(path))
        methods: dict[str, tuple[RestOperation, dict[str, str]]] = {}
        for each in self.operations:
            if (parameters := _matched(each.segments, segments)) is not None:
                methods[each.method] = each, parameters
        if not methods:
            raise NotFoundError(
                f"there is no resource {path[:200]}; /openapi.json lists the operations"
            )
        found = methods.get("GET" if method == "HEAD" else method)
        if found is None:
            allowed = ", ".join(sorted({*methods, *(["HEAD"] if "GET" in methods else [])}))
            raise MethodNotAllowed(
                f"{path[:200]} takes {allowed}, not {method[:20]}", metadata={"allow": allowed}
            )
        return found

    async def _answer(
        self, operation: RestOperation, path: dict[str, str], scope: Scope, receive: Receive
    ) -> RestAnswer:
        app = self._app()
        if not app.lifecycle.started:
            await app.lifecycle.start_late()
        gate = app.gate("agents")
        if gate is not None and not gate.is_visible(scope):
            raise NotFoundError("nothing is here")
        caller, challenges = await self._caller(app, scope)
        self._rules.check(operation, caller, challenges)
        trusts = app.settings.trust_proxy
        fields: tuple[tuple[bytes, bytes], ...] = ()
        if self._limits is not None:
            grant = self._limits.begin(
                operation.name, caller, partial(client_address, scope, trust_proxy=trusts)
            )
            grant.of_tenant("")
            await grant.settle()
            fields = tuple((name.encode(), value.encode()) for name, value in grant.fields)
        headers = {name: value for name, value in scope["headers"]}
        body = b""
        if operation.request is not None:
            declared = headers.get(b"content-type", b"")
            if base_type(declared) != b"application/json":
                shown = declared[:60].decode("latin-1") or "none"
                raise NotJson(f"the body must be JSON (application/json), not {shown}")
            length = headers.get(b"content-length")
            most = self._catalog_bytes if operation.is_large else MAX_BODY
            body = await read_body(receive, scope, length, most, app.request_bytes)
        request = RestRequest(
            path=path,
            query=_query(operation, scope.get("query_string", b"")),
            headers={
                name.decode("latin-1"): value.decode("latin-1") for name, value in headers.items()
            },
            caller=caller,
            viewer=viewer_of(caller),
            base=(app.url or server_address(scope, trust_proxy=trusts)).rstrip("/"),
            address=client_address(scope, trust_proxy=trusts),
        )
        given = [] if operation.request is None else [_read(body, operation)]
        answer = await operation.handler(request, *given)
        if not isinstance(answer, RestAnswer):
            answer = RestAnswer(body=answer, status=operation.status, max_age=operation.max_age)
        return msgspec.structs.replace(answer, headers=fields)

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

    async def _refuse(self, scope: Scope, send: Send, error: A2AError) -> None:
        status, headers = error.http_status, [*error_headers(error)]
        if isinstance(error, MethodNotAllowed):
            headers.append((b"allow", error.metadata["allow"].encode()))
            if scope["method"] == "OPTIONS":
                await reply_without_body(send, 204, headers)
                return
        code = ERROR_CODES.get(status, ERROR_CODES[500])
        body = Error(code, error.message)
        headers = [NO_STORE, _NOSNIFF, *headers]
        if scope["method"] == "HEAD":
            await reply_without_body(send, status, headers)
        else:
            await reply(send, status, msgspec.json.encode(body), headers)

    def _vary(self) -> bytes:
        if self._varies is None:
            self._varies = b", ".join(caller_headers(self._app().identify))
        return self._varies


def _read(body: bytes, operation: RestOperation) -> Any:
    """Return a body, decoded as a type without unknown members.

    Raises ``InvalidParamsError``.
    """
    what = operation.what
    try:
        return msgspec.json.decode(without_bom(body), type=operation.request)
    except msgspec.ValidationError as error:
        raise InvalidParamsError(f"{what} is invalid: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidParamsError(f"{what} must be a JSON object; this body is not JSON") from None


def _matched(pattern: Sequence[str], segments: Sequence[str]) -> dict[str, str] | None:
    """Return the parameters of a path, ``None`` if it does not match the pattern."""
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


def _query(operation: RestOperation, raw: bytes) -> Mapping[str, str]:
    """Return the query parameters, all known to the operation. Raises ``InvalidParamsError``."""
    if not raw:
        return {}
    if len(raw) > MAX_QUERY:
        raise InvalidParamsError(f"a query has at most {MAX_QUERY} bytes")
    try:
        pairs = parse_qsl(
            raw.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=MAX_PARAMETERS,
        )
    except ValueError:
        raise InvalidParamsError("the query of this address cannot be read") from None
    found: dict[str, str] = {}
    for name, value in pairs:
        if name not in operation.parameters:
            known = ", ".join(operation.parameters) or "none"
            raise InvalidParamsError(
                f"there is no parameter {name[:40]!r}; the parameters are: {known}"
            )
        if name in found:
            raise InvalidParamsError(f"{name} is given twice")
        found[name] = value
    return found


def _is_known(scope: Scope, etag: bytes) -> bool:
    """Return whether a request names the current ETag."""
    for name, value in scope["headers"]:
        if name == b"if-none-match":
            tags = [each.strip().removeprefix(b"W/") for each in value.split(b",")]
            return etag in tags or b"*" in tags
    return False
