"""Logins by a person: with a browser on this machine, or with a code on another device.

Both request an ``offline_access`` token if the issuer supports it, so that one login lasts. A
client without an id registers itself, if the issuer allows that (RFC 7591).
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Any, Self
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import msgspec

from parley.client.auth.credentials import Use
from parley.client.auth.grant import Grant, Token, read_token
from parley.client.auth.issuers import (
    CLIENT_AUTH,
    TokenIssuer,
    TokenRefused,
    check_page,
    refusal_of,
)
from parley.client.bindings.http import redacted
from parley.model.cards import OAuthFlows
from parley.security.issuers import ClientIdentity

# -- redirect ---------------------------------------------------------------------------------
#
# The page on this machine to which a browser is redirected after a login (RFC 8252 §7.3).


PATH = "/callback"
MAX_HEAD = 16 * 1024
MAX_OPEN = 16
"""The maximum number of requests that are read at a time."""

_DONE = "You are logged in. You can close this page."
_FAILED = "The login failed. The program that you logged in for says why."


class RedirectListener:
    """Waits for one redirect with the right ``state``; all other requests are rejected.

    Other programs and pages on this machine can send requests too. Without the state they learn
    nothing, and waiting continues.
    """

    def __init__(self, state: str, *, port: int = 0) -> None:
        self._state = state
        self._wanted_port = port
        self._server: asyncio.Server | None = None
        self._answer: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()
        self._open = 0
        self.port = 0

    @property
    def url(self) -> str:
        """The address of the redirect."""
        return f"http://127.0.0.1:{self.port}{PATH}"

    async def __aenter__(self) -> Self:
        try:
            self._server = await asyncio.start_server(
                self._serve, "127.0.0.1", self._wanted_port, limit=MAX_HEAD
            )
        except OSError as error:
            raise TokenRefused(
                f"the browser cannot come back to 127.0.0.1:{self._wanted_port or ''}: "
                f"{error.strerror or error}"
            ) from None
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._server is not None:
            self._server.close()
        self._answer.cancel()

    async def wait(self, timeout: float) -> dict[str, str]:
        """Return the parameters of the redirect. Raises ``TokenRefused``."""
        try:
            async with asyncio.timeout(timeout):
                return await asyncio.shield(self._answer)
        except TimeoutError:
            raise TokenRefused(f"no login was completed within {timeout:g} s") from None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= MAX_OPEN:
                async with asyncio.timeout(10):
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(self._reply(head.decode("latin-1")))
                    await writer.drain()
        except (OSError, EOFError, asyncio.LimitOverrunError, TimeoutError):
            pass
        finally:
            self._open -= 1
            writer.close()

    def _reply(self, head: str) -> bytes:
        first, *rest = head.split("\r\n")
        method, _, target = first.rpartition(" ")[0].partition(" ")
        hosts = [
            line.partition(":")[2].strip() for line in rest if line.lower().startswith("host:")
        ]
        try:
            parts = urlsplit(target)
        except ValueError:
            return _page(400, "Bad request.")
        # A different host name may belong to a foreign page (DNS rebinding).
        if hosts != [f"127.0.0.1:{self.port}"] or parts.path != PATH or method != "GET":
            return _page(404, "There is nothing here.")
        given = parse_qsl(parts.query, keep_blank_values=True)
        answer = dict(given)
        right = hmac.compare_digest(answer.get("state", "").encode(), self._state.encode())
        if not right or len(answer) != len(given) or self._answer.done():
            return _page(400, "This is not the expected login.")
        self._answer.set_result(answer)
        return _page(200, _DONE if "code" in answer else _FAILED)


def _page(status: int, words: str) -> bytes:
    reasons = {200: "OK", 400: "Bad Request", 404: "Not Found"}
    body = f"<!doctype html><meta charset=utf-8><title>Parley</title><p>{words}".encode()
    head = (
        f"HTTP/1.1 {status} {reasons[status]}\r\nContent-Type: text/html; "
        f"charset=utf-8\r\nContent-Length: {len(body)}\r\nCache-Control: "
        "no-store\r\nReferrer-Policy: no-referrer\r\nContent-Security-Policy: default-src "
        "'none'\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


# -- login ------------------------------------------------------------------------------------


logger = logging.getLogger(__name__)

DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
CLIENT_NAME = "parley"


class Login(Grant):
    """A grant that needs a login by a person."""

    interactive = True

    def __init__(self, client_id: str = "", client_secret: str = "", **options: Any) -> None:
        super().__init__(client_id, client_secret, **options)
        self._registered: dict[str, ClientIdentity] = {}

    def wanted_scopes(self, use: Use, issuer: TokenIssuer) -> tuple[str, ...]:
        """Return the scopes to request, including OpenID Connect's scopes for a lasting login."""
        openid = use.scheme is not None and use.scheme.open_id_connect_security_scheme is not None
        own = ["openid"] if openid else []
        if "offline_access" in issuer.scopes:
            own.append("offline_access")
        return tuple(dict.fromkeys((*own, *super().wanted_scopes(use, issuer))))

    def client_of(self, issuer: TokenIssuer) -> ClientIdentity:
        """Return the client that is registered with an issuer."""
        return self._registered.get(issuer.key, self.identity)

    async def refresh(self, use: Use, issuer: TokenIssuer, held: Token) -> Token:
        """Exchange a refresh token for a new token. The issuer may replace the refresh token
        too."""
        form = {"grant_type": "refresh_token", "refresh_token": held.refresh_token}
        url = issuer.refresh_url or issuer.token_url
        client = self.client_of(issuer)
        return await self.token_for(use, issuer, form, (), url=url, previous=held, client=client)

    async def _client(
        self, use: Use, issuer: TokenIssuer, grant: str, redirect_uri: str = ""
    ) -> ClientIdentity:
        """Return the client, registered with the issuer if the user gave none."""
        if self.client_id:
            return self.identity
        if not issuer.registration_url:
            raise TokenRefused(
                f"{issuer.key} accepts only registered clients: give the id of one "
                "(client_id=..., parley auth login --client-id)"
            )
        asked: dict[str, Any] = {
            "client_name": CLIENT_NAME,
            "grant_types": [grant, "refresh_token"],
            "token_endpoint_auth_method": "none",
        }
        if redirect_uri:
            asked |= {
                "redirect_uris": [redirect_uri],
                "response_types": ["code"],
                "application_type": "native",
            }
        url = issuer.registration_url
        status, answer = await use.issuers.http.post_json(url, asked)
        if status not in (200, 201) or not isinstance(answer.get("client_id"), str):
            raise refusal_of(answer, status, url, ())
        secret = answer.get("client_secret")
        method = answer.get("token_endpoint_auth_method")
        client = ClientIdentity(
            answer["client_id"],
            secret if isinstance(secret, str) else "",
            method if method in CLIENT_AUTH and secret else "",
        )
        self._registered[issuer.key] = client
        return client


class AuthorizationCode(Login):
    """A login in the browser of this machine: authorization code with PKCE (RFC 6749, 7636, 8252).

    ``open_url`` opens a page and returns whether that worked; the default is the system's browser.
    The browser is redirected to a port of 127.0.0.1, ``redirect_port`` or any free one, within
    ``timeout`` seconds.
    """

    def __init__(
        self,
        client_id: str = "",
        client_secret: str = "",
        *,
        open_url: Callable[[str], Any] | None = None,
        redirect_port: int = 0,
        timeout: float = 300.0,
        **options: Any,
    ) -> None:
        super().__init__(client_id, client_secret, **options)
        self._open_url = open_url or _open_browser
        self._port = redirect_port
        self._timeout = timeout

    def suits(self, flows: OAuthFlows) -> bool:
        """Return whether a card's flow is authorization code."""
        return flows.authorization_code is not None

    async def ask(self, use: Use, issuer: TokenIssuer, scopes: tuple[str, ...]) -> Token:
        """Return the token from a login."""
        page = issuer.authorization_url
        if not page:
            raise TokenRefused(f"{issuer.key} has no page to log in at; use another flow")
        check_page(page)
        needs_iss = issuer.sends_iss or not issuer.owns(page)
        verifier, state = secrets.token_urlsafe(48), secrets.token_urlsafe(24)
        digest = hashlib.sha256(verifier.encode()).digest()
        async with RedirectListener(state, port=self._port) as listener:
            client = await self._client(use, issuer, "authorization_code", listener.url)
            asked = {
                "response_type": "code",
                "client_id": client.id,
                "redirect_uri": listener.url,
                "state": state,
                "code_challenge": base64.urlsafe_b64encode(digest).rstrip(b"=").decode(),
                "code_challenge_method": "S256",
                **self.target(use, scopes),
            }
            url = _with_query(page, asked)
            # The function may wait until the browser has started.
            if await asyncio.to_thread(self._open_url, url) is False:
                raise TokenRefused(
                    "no browser could be opened to log in with; log in with a code instead "
                    "(DeviceCode, parley auth login --flow device-code)"
                )
            answer = await listener.wait(self._timeout)
        self._check_answer(answer, issuer, needs_iss=needs_iss)
        form = {
            "grant_type": "authorization_code",
            "code": answer.get("code", ""),
            "redirect_uri": listener.url,
            "code_verifier": verifier,
        }
        form["resource"] = self.resource or use.resource
        answered = await use.issuers.http.ask_for_token(
            issuer.token_url, form, client, methods=issuer.auth_methods
        )
        return read_token(answered, redacted(issuer.token_url), now=self._now())

    @staticmethod
    def _check_answer(answer: dict[str, str], issuer: TokenIssuer, *, needs_iss: bool) -> None:
        """Reject the answer of another issuer (RFC 9207), and an error."""
        said = answer.get("iss", "")
        if (said or needs_iss) and issuer.url and said != issuer.url:
            by = redacted(said)[:200] or "an unnamed issuer"
            raise TokenRefused(
                f"the login was answered by {by!r}, not by {redacted(issuer.url)}: its code is not "
                "used"
            )
        if needs_iss and not issuer.url:
            raise TokenRefused(
                "the card names a page to log in at and a token endpoint of different origins; "
                "name the issuer if that is right (issuer=..., parley auth login --issuer)"
            )
        if not answer.get("code"):
            raise refusal_of(answer, 400, issuer.authorization_url, ())


def _open_browser(url: str) -> bool:
    import webbrowser  # slow to import, rarely needed

    return webbrowser.open(url)


class DevicePrompt(msgspec.Struct, frozen=True):
    """The step for a person: open ``url`` on any device and enter ``code``.

    ``complete_url`` contains the code, if the issuer gives such an address; ``seconds`` is the
    lifetime of the code.
    """

    url: str
    code: str
    complete_url: str = ""
    seconds: float = 600.0

    def __str__(self) -> str:
        text = f"To log in, open {self.url} and enter the code {self.code}"
        return "".join(char if char.isprintable() else "?" for char in text)  # text of the issuer


def log_prompt(prompt: DevicePrompt) -> None:
    """Log a prompt as a warning. Where logging is not set up, Python writes it to stderr."""
    logger.warning("%s", prompt)


class DeviceCode(Login):
    """A login on another device (RFC 8628): ``prompt`` shows the address and the code."""

    def __init__(
        self,
        client_id: str = "",
        client_secret: str = "",
        *,
        prompt: Callable[[DevicePrompt], Any] = log_prompt,
        sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
        **options: Any,
    ) -> None:
        super().__init__(client_id, client_secret, **options)
        self._prompt = prompt
        self._sleep = sleep

    def suits(self, flows: OAuthFlows) -> bool:
        """Return whether a card's flow is device code."""
        return flows.device_code is not None

    async def ask(self, use: Use, issuer: TokenIssuer, scopes: tuple[str, ...]) -> Token:
        """Return the token from a login."""
        if not issuer.device_url:
            raise TokenRefused(f"{issuer.key} gives no codes for logins; use another flow")
        if not issuer.owns(issuer.device_url):
            raise TokenRefused(
                "the card names a device endpoint and a token endpoint of different origins; name "
                "the issuer if that is right (issuer=..., parley auth login --issuer)"
            )
        client = await self._client(use, issuer, DEVICE_GRANT)
        http, methods = use.issuers.http, issuer.auth_methods
        # A public client names itself in the form; a client with a secret authenticates.
        status, answer = await http.post_form(
            issuer.device_url,
            {"client_id": client.id, **self.target(use, scopes)},
            client,
            methods=methods,
        )
        if status != 200 or "error" in answer:
            raise refusal_of(answer, status, issuer.device_url, (client.secret,))
        device_code, prompt, interval = _read_device_answer(answer, issuer)
        end = self._now() + prompt.seconds
        self._prompt(prompt)
        form = {"grant_type": DEVICE_GRANT, "device_code": device_code}
        while True:
            await self._sleep(interval)
            if self._now() >= end:
                raise TokenRefused("the code to log in with has expired", error="expired_token")
            try:
                return await self.token_for(use, issuer, form, (), client=client)
            except TokenRefused as error:
                match error.error:
                    case "authorization_pending":
                        continue
                    case "slow_down":
                        interval += 5
                    case _ if error.is_transient:
                        interval = min(interval * 2, 60)
                    case _:
                        raise


def _read_device_answer(
    answer: dict[str, Any], issuer: TokenIssuer
) -> tuple[str, DevicePrompt, float]:
    device_code, user_code = answer.get("device_code"), answer.get("user_code")
    page = answer.get("verification_uri", answer.get("verification_url"))
    complete = answer.get("verification_uri_complete")
    texts = (device_code, user_code, page)
    if not all(isinstance(text, str) and text for text in texts):
        raise TokenRefused(f"{redacted(issuer.device_url)} answered without a code to log in with")
    for shown in (user_code, page):
        if not str(shown).isprintable() or len(str(shown)) > 2000:
            raise TokenRefused(f"{redacted(issuer.device_url)} gives a code that cannot be shown")
    check_page(str(page))
    is_usable = isinstance(complete, str) and complete.isprintable() and complete.startswith("http")
    prompt = DevicePrompt(
        str(page),
        str(user_code),
        str(complete) if is_usable else "",
        _number(answer.get("expires_in"), 600.0, 1.0, 3600.0),
    )
    return str(device_code), prompt, _number(answer.get("interval"), 5.0, 1.0, 60.0)


def _number(value: Any, default: float, least: float, most: float) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return default
    return min(max(float(value), least), most)


def _with_query(page: str, parameters: dict[str, str]) -> str:
    parts = urlsplit(page)
    given = urlencode({name: value for name, value in parameters.items() if value})
    query = "&".join(filter(None, (parts.query, given)))
    return urlunsplit(parts._replace(query=query, fragment=""))
