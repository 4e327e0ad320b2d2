"""HTTP access to an MCP server: within the egress policy, with its credentials."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any, cast

import httpx2
from mcp.client.auth import OAuthClientProvider
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from mcp.types import INTERNAL_ERROR, INVALID_REQUEST

from parley.client.auth.credentials import Credential, Use
from parley.client.auth.grant import ClientCredentials, Grant
from parley.client.auth.issuers import Issuers
from parley.client.bindings.request_auth import RequestParameters
from parley.client.origin import Origin
from parley.mcp.tool_server import McpServer
from parley.security.egress import Egress, ForbiddenAddress, ThreadedLookup

log = logging.getLogger("parley.agent")

CONNECT_SECONDS = 10.0
"""The time limit of a connection attempt."""

ANSWER_OVERHEAD_BYTES = 64 * 1024
"""How much larger a response may be than the result in it, in bytes."""


SESSION_ID = "mcp-session-id"

SESSION_NOT_FOUND = "Session not found"
"""The message of a server that has lost a session."""


def http_client(
    server: McpServer, egress: Egress | None, is_open: Callable[[], bool] = lambda: False
) -> McpHttpClient:
    """Return the HTTP client for a server. It connects only to addresses that the policy allows.

    Once ``is_open``, a failed request is answered with a JSON-RPC error.
    """
    if egress is not None and server.is_authors:
        named = [server.url]
        if isinstance(server.auth, Grant):
            named += [server.auth.issuer or "", server.auth.token_url or ""]
        egress = egress.adding([_place(Origin.of(each)) for each in named if each])
    timeout = httpx2.Timeout(None, connect=CONNECT_SECONDS)  # calls have their own time limit
    headers = {**server.headers, "Accept-Encoding": "identity"}
    if isinstance(server.auth, str):
        headers["Authorization"] = f"Bearer {server.auth}"
    return McpHttpClient(
        is_open,
        transport=GuardedTransport(egress, server.max_result_bytes + ANSWER_OVERHEAD_BYTES),
        headers=headers,
        auth=auth_of(server),
        timeout=timeout,
        trust_env=False,
        follow_redirects=False,
    )


class McpHttpClient(httpx2.AsyncClient):
    """Sends the messages of a connection that many calls share.

    An exception would end the connection and all its calls. So a failed request is answered with a
    JSON-RPC error, and the other calls continue.
    """

    def __init__(self, is_open: Callable[[], bool], **options: Any) -> None:
        super().__init__(**options)
        self._is_open = is_open

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send a request, and read the answer unless it is a stream."""
        if request.method != "POST" or not self._is_open():
            return await super().send(request, **options)
        try:
            response = await super().send(request, **options)
            is_lost = response.status_code == 404 and SESSION_ID in request.headers
            if _is_stream(response) and not is_lost:
                return response
            try:
                await response.aread()
            finally:
                await response.aclose()
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            return _failed(request, f"the server cannot be reached: {error}")
        except httpx2.HTTPError as error:
            return _failed(request, str(error) or "the connection broke")
        except Exception:  # a boundary: credentials are attached here
            log.exception("a request to the MCP server %s failed", request.url.host)
            return _failed(request, "the request could not be sent; the log has the reason")
        return _failed(request, SESSION_NOT_FOUND, INVALID_REQUEST) if is_lost else response


def _failed(request: httpx2.Request, text: str, code: int = INTERNAL_ERROR) -> httpx2.Response:
    error = {"code": code, "message": text}
    return httpx2.Response(
        502, json={"jsonrpc": "2.0", "id": None, "error": error}, request=request
    )


def _is_stream(response: httpx2.Response) -> bool:
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    return bool(kind == "text/event-stream")


class GuardedTransport(httpx2.AsyncHTTPTransport):
    """Connects to addresses that a policy allows, and reads responses up to a size.

    A name is resolved once for each request, and the connection uses the address that was checked.
    """

    def __init__(self, egress: Egress | None, max_bytes: int) -> None:
        super().__init__(retries=0, trust_env=False)
        self._egress = egress
        self._lookup = ThreadedLookup()
        self._max_bytes = max_bytes

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request. Raises ``httpx2.ConnectError`` for an address that is not allowed."""
        if self._egress is not None:
            request = await self._checked(request)
        response = await super().handle_async_request(request)
        if response.headers.get("content-encoding", "identity").strip().lower() != "identity":
            await response.aclose()  # a small response could decompress to a huge one
            raise httpx2.ReadError(
                "the response is compressed, although the request forbids it", request=request
            )
        if not _is_stream(response):  # the client bounds the events of a stream
            stream = cast("httpx2.AsyncByteStream", response.stream)
            response.stream = _Bounded(stream, self._max_bytes)
        return response

    async def _checked(self, request: httpx2.Request) -> httpx2.Request:
        url = request.url
        port = url.port or (443 if url.scheme == "https" else 80)
        assert self._egress is not None
        try:
            found = await self._egress.resolve(url.host, port, self._lookup)
        except ForbiddenAddress as error:
            raise httpx2.ConnectError(str(error), request=request) from error
        except OSError as error:
            raise httpx2.ConnectError(
                f"{url.host} cannot be resolved: {error}", request=request
            ) from error
        extensions = {**request.extensions, "sni_hostname": url.host}
        return httpx2.Request(
            request.method,
            url.copy_with(host=found[0]),
            headers=request.headers,  # the Host header has the name, not the address
            stream=request.stream,
            extensions=extensions,
        )


class _Bounded(httpx2.AsyncByteStream):
    """A body that ends with an error when it is too large."""

    def __init__(self, stream: httpx2.AsyncByteStream, limit: int) -> None:
        self._stream = stream
        self._limit = limit

    async def __aiter__(self) -> AsyncIterator[bytes]:
        read = 0
        async for chunk in self._stream:
            read += len(chunk)
            if read > self._limit:
                raise httpx2.ReadError(f"the response has more than {self._limit:,} bytes")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


# -- credentials -----------------------------------------------------------------------------------


def auth_of(server: McpServer) -> httpx2.Auth | None:
    """Return the ``httpx2.Auth`` for the credentials of a server. Raises ``TypeError`` for other
    types.
    """
    given: Any = server.auth
    if given is None or isinstance(given, str):
        return None
    if isinstance(given, httpx2.Auth):
        return given
    if isinstance(given, ClientCredentials):
        return _client_credentials(server, given)
    if isinstance(given, Credential) and not isinstance(given, Grant):
        return _Attached(given, str(Origin.of(server.url)))
    raise TypeError(
        "auth= of an MCP server must be a bearer token, a credential such as ApiKey, Basic, "
        "Bearer or "
        "ClientCredentials (parley.client.auth), or an httpx2.Auth such as OAuthClientProvider "
        f"of the package mcp, not {type(given).__name__}"
    )


class _Attached(httpx2.Auth):
    """Attaches a credential to requests to one origin, and renews it once when it is rejected."""

    def __init__(self, credential: Credential, origin: str) -> None:
        self._credential = credential
        self._use = Use(origin=origin, issuers=cast("Issuers", None))

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        sent = await self._credential.attach(self._use)
        _add(request, sent)
        response = yield request
        if response.status_code == 401 and await self._credential.renew(
            self._use, sent, widened=False
        ):
            _add(request, await self._credential.attach(self._use))
            yield request


def _add(request: httpx2.Request, parameters: RequestParameters) -> None:
    request.headers.update(parameters.headers)
    if parameters.query:
        request.url = request.url.copy_merge_params(parameters.query)


class _Tokens:
    """Keeps the tokens of one connection in memory."""

    def __init__(self) -> None:
        self._tokens: OAuthToken | None = None
        self._client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self._tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self._tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self._client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self._client = client_info


def _client_credentials(server: McpServer, given: ClientCredentials) -> OAuthClientProvider:
    return ClientCredentialsOAuthProvider(
        server.url,
        _Tokens(),
        given.client_id,
        given._secret,
        scope=" ".join(given.scopes) or None,
        issuer=given.issuer or None,
    )


def _place(origin: Origin) -> str:
    host = f"[{origin.host}]" if ":" in origin.host else origin.host
    return f"{host}:{origin.port}"
