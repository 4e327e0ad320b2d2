"""Requests to issuers: encrypted, bounded, and only to where this side may go.

A card may name any address as an issuer's, so an address that only a card names is guarded: it is
dialled if it is of the public internet. The agent's own origin, what the user names, and this
machine for an agent on this machine are dialled as they are.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from parley.client.auth.errors import TokenRefused
from parley.client.bindings.http import HttpTransport, Reply, redacted
from parley.client.errors import (
    AddressNotAllowed,
    ClientError,
    Disconnected,
    Timeout,
    Unreachable,
    Untrusted,
)
from parley.client.origin import Origin
from parley.client.retry import TRANSIENT_STATUSES, Retry, repeat
from parley.security.egress import Egress
from parley.security.networks import is_loopback

MAX_ANSWER = 1024 * 1024
TIMEOUT = 30.0
_RETRY = Retry(calls=2, streams=0)
_JSON = {"Accept": "application/json"}

CLIENT_AUTH = ("", "client_secret_basic", "client_secret_post", "tls_client_auth", "none")
"""The methods with which a client authenticates; empty for the one that fits."""


class ClientIdentity(msgspec.Struct, frozen=True):
    """How a client authenticates to an issuer (RFC 6749 §2.3): a public one has no secret."""

    id: str
    secret: str = ""
    method: str = ""

    def __repr__(self) -> str:
        return f"ClientIdentity({self.id!r})"

    def apply(
        self, form: Mapping[str, str], methods: tuple[str, ...]
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Return the headers and the form of a request that authenticates this client.

        ``methods`` are those that the issuer knows, empty if it does not say.
        """
        method = self.method
        if not method and self.secret:
            posts = "client_secret_post" in methods and "client_secret_basic" not in methods
            method = "client_secret_post" if posts else "client_secret_basic"
        if self.secret and method == "client_secret_basic":
            pair = f"{quote(self.id, safe='')}:{quote(self.secret, safe='')}"
            basic = base64.b64encode(pair.encode()).decode()
            return {"Authorization": f"Basic {basic}"}, dict(form)
        own = {"client_id": self.id} if self.id else {}
        if self.secret and method == "client_secret_post":
            own["client_secret"] = self.secret
        return {}, {**form, **own}


class IssuerHttp:
    """Asks issuers. ``trusts`` returns whether an origin is dialled without the guard.

    All others have to be addresses that ``egress`` allows, by default the policy of ``http``.
    """

    def __init__(
        self,
        http: HttpTransport,
        *,
        trusts: Callable[[Origin], bool],
        is_local: bool = False,
        egress: Egress | None = None,
    ) -> None:
        self._http = http
        self._egress = egress
        self._trusts = trusts
        self._is_local = is_local or http.is_local
        self._guarded: HttpTransport | None = None
        self._network: HttpTransport | None = None
        self._named: tuple[Origin, ...] = ()

    def trust(self, origins: Iterable[Origin]) -> None:
        """Dial these origins without the guard too: the user names them."""
        self._named = (*self._named, *origins)

    async def aclose(self) -> None:
        """Close the connections to issuers. Idempotent."""
        for transport in (self._guarded, self._network):
            if transport is not None:
                await transport.close()

    async def get_json(self, url: str) -> dict[str, Any]:
        """Return a JSON object. Raises ``TokenRefused``."""
        reply = await self._send("GET", url, _JSON, None)
        if reply.status != 200:
            raise TokenRefused(f"{redacted(url)} answered {reply.status}; expected metadata")
        return _object(reply)

    async def post_json(self, url: str, value: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        """Send a JSON object, and return the status and the object that answers."""
        headers = {**_JSON, "Content-Type": "application/json"}
        reply = await self._send("POST", url, headers, msgspec.json.encode(value))
        return reply.status, _object(reply)

    async def post_form(
        self,
        url: str,
        form: Mapping[str, str],
        client: ClientIdentity,
        *,
        methods: tuple[str, ...] = (),
    ) -> tuple[int, dict[str, Any]]:
        """Send a form as a client, and return the status and the object that answers."""
        authorization, whole = client.apply(form, methods)
        headers = {**_JSON, "Content-Type": "application/x-www-form-urlencoded", **authorization}
        body = urlencode({name: value for name, value in whole.items() if value}).encode()
        reply = await self._send("POST", url, headers, body)
        if not reply.body and reply.status == 200:  # as for a revocation
            return reply.status, {}
        return reply.status, _object(reply)

    async def ask_for_token(
        self,
        url: str,
        form: Mapping[str, str],
        client: ClientIdentity,
        *,
        methods: tuple[str, ...] = (),
    ) -> dict[str, Any]:
        """Return what a token endpoint answers. Raises ``TokenRefused`` for a refusal."""
        status, answer = await self.post_form(url, form, client, methods=methods)
        if status != 200 or "error" in answer:
            hidden = (client.secret, *(form.get(name, "") for name in _SECRETS))
            raise refusal_of(answer, status, url, hidden)
        return answer

    async def _send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None
    ) -> Reply:
        transport = self._transport_for(url)

        async def send() -> Reply:
            return await transport.send(method, url, headers, body, timeout=TIMEOUT)

        try:
            # What was never sent may be sent again; what was sent may have used a code up.
            return await repeat(
                send, _RETRY, safe=method == "GET", name=f"the issuer at {redacted(url)}"
            )
        except Untrusted as error:
            raise TokenRefused(f"no token: {error}") from None
        except (Unreachable, Disconnected, Timeout) as error:
            raise TokenRefused(f"no token: {error}", error="unreachable") from None
        except AddressNotAllowed as error:
            # The rest of its words is about files.
            said, is_guarded, _ = str(error).partition(", which is not allowed")
            advice = (
                ", and only a card names it: name it yourself if it is right (issuer=..., "
                "token_url=...; parley auth login --issuer)"
            )
            raise TokenRefused(f"no token: {said}{advice * bool(is_guarded)}") from None
        except ClientError as error:
            raise TokenRefused(f"no token: {error}") from None

    def _transport_for(self, url: str) -> HttpTransport:
        """Return what dials an address. Raises ``TokenRefused`` for one that must not be asked."""
        try:
            origin = Origin.of(url)
        except ValueError as error:
            raise TokenRefused(f"an issuer has {error}, unlike {redacted(url)[:200]!r}") from None
        http = self._http if self._http.carries(url) else self._over_network()
        if origin.is_plaintext and not http.is_local:
            raise TokenRefused(
                f"no token is asked for at {redacted(url)}, which is not encrypted; an issuer has "
                "an https address"
            )
        is_named = any(each.covers(origin) for each in self._named)
        if is_named or self._trusts(origin) or (self._is_local and is_loopback(origin.host)):
            return http
        if http.is_local:
            return http
        if self._guarded is None:
            self._guarded = http.guarded(self._egress or http.egress or Egress())
        return self._guarded

    def _over_network(self) -> HttpTransport:
        """Return a transport for issuers that are not in this process, though the agent is."""
        if self._network is None:
            self._network = HttpTransport(connect_timeout=self._http.connect_timeout)
        return self._network


_SECRETS = ("code", "code_verifier", "refresh_token", "device_code", "subject_token", "actor_token")


def refusal_of(
    answer: Mapping[str, Any], status: int, url: str, secrets: tuple[str, ...]
) -> TokenRefused:
    """Return the error for an issuer's refusal, without secrets that it may have echoed."""
    code, said = answer.get("error"), answer.get("error_description")
    error = code if isinstance(code, str) else ""
    words = f"{error}: {said}" if isinstance(said, str) and said else error or f"status {status}"
    error = error or _code_of(status)
    for secret in secrets:
        if secret:
            words = words.replace(secret, "[redacted]")
    shown = "".join(char if char.isprintable() else " " for char in words)[:300]
    return TokenRefused(f"{redacted(url)} gives no token ({shown})", error=error[:60])


def _code_of(status: int) -> str:
    """Return the code for an answer without one."""
    return "unreachable" if status in TRANSIENT_STATUSES else ""


def _object(reply: Reply) -> dict[str, Any]:
    if len(reply.body) > MAX_ANSWER:
        raise TokenRefused(
            f"the answer of {redacted(reply.url)} is larger than {MAX_ANSWER:,} bytes"
        )
    try:
        value = msgspec.json.decode(reply.body)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise TokenRefused(
            f"{redacted(reply.url)} answered {reply.status} without a JSON object; "
            "is it an issuer?",
            error=_code_of(reply.status),
        )
    return value
