"""Token issuers: their endpoints, as named by the card and by the user.

The source of an endpoint matters, because a card is written by an agent, which may lie:

- Endpoints named by the user (``issuer=``, ``token_url=``) take precedence.
- Metadata takes precedence over endpoints in a card's flow, and must belong to the issuer that it
  names (RFC 8414 §3.3, OpenID Connect Discovery §4.3).
- The login page must be at the origin of the token endpoint or of the issuer, so that no agent can
  have a code of one issuer sent to another. If it is elsewhere, the issuer must identify itself in
  its answer (``iss``, RFC 9207).
- A refresh token is only sent to the origin of the token endpoint, for renewal and revocation.
- A challenge may name the agent's metadata (RFC 9728) only at the agent's own origin. The metadata
  may name only an issuer that the card or the user names too, or one at the agent's own origin.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit, urlunsplit

import msgspec

from parley.client.bindings.http import HttpTransport, NamedTransports, Reply, redacted
from parley.client.errors import (
    AddressNotAllowed,
    AuthenticationRequired,
    ClientError,
    Disconnected,
    Timeout,
    Unreachable,
    Untrusted,
)
from parley.client.origin import Origin
from parley.client.retry import TRANSIENT_STATUSES, Retry, repeat
from parley.model.bounded import Bounded
from parley.model.cards import SecurityScheme
from parley.security.egress import Egress
from parley.security.issuers import ClientIdentity
from parley.security.networks import is_loopback

# -- errors -----------------------------------------------------------------------------------


class TokenRefused(AuthenticationRequired):
    """No token could be obtained: the issuer rejected the request, failed, or may not be contacted.

    Log in again, or correct the client's registration at the issuer.

    ``error`` is the issuer's code (RFC 6749 §5.2), such as ``invalid_client``, if it gave one, and
    ``unreachable`` if it did not answer or failed.
    """

    def __init__(self, message: str, *, error: str = "") -> None:
        super().__init__(message, status=401)
        self.error = error

    @property
    def is_transient(self) -> bool:
        """True if the issuer has made no decision, and may give the token later."""
        return self.error in ("unreachable", "temporarily_unavailable", "server_error")


# -- issuer http ------------------------------------------------------------------------------

MAX_ANSWER = 1024 * 1024
TIMEOUT = 30.0
_RETRY = Retry(calls=2, streams=0)
_JSON = {"Accept": "application/json"}

CLIENT_AUTH = ("", "client_secret_basic", "client_secret_post", "tls_client_auth", "none")
"""The methods by which a client authenticates; empty for a supported one."""


class IssuerHttp:
    """The HTTP client for issuers. ``trusts`` returns whether an origin is called without the
    guard.

    Other origins must be allowed by ``egress``, by default the policy of ``http``.
    """

    def __init__(
        self,
        http: HttpTransport,
        *,
        trusts: Callable[[Origin], bool],
        is_local: bool = False,
        egress: Egress | None = None,
    ) -> None:
        self._egress = egress
        self._trusts = trusts
        self._is_local = is_local or http.is_local
        self._transports = NamedTransports(http)
        self._named: tuple[Origin, ...] = ()

    def trust(self, origins: Iterable[Origin]) -> None:
        """Call these origins without the guard too, since the user names them."""
        self._named = (*self._named, *origins)

    async def aclose(self) -> None:
        """Close the connections to issuers. Idempotent."""
        await self._transports.aclose()

    async def get_json(self, url: str) -> dict[str, Any]:
        """Return a JSON object. Raises ``TokenRefused``."""
        reply = await self._send("GET", url, _JSON, None)
        if reply.status != 200:
            raise TokenRefused(f"{redacted(url)} answered {reply.status}; expected metadata")
        return _object(reply)

    async def post_json(self, url: str, value: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        """Send a JSON object. Return the status and the object in the response."""
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
        """Send a form as this client. Return the status and the object in the response."""
        authorization, whole = client.apply(form, methods)
        headers = {**_JSON, "Content-Type": "application/x-www-form-urlencoded", **authorization}
        body = urlencode({name: value for name, value in whole.items() if value}).encode()
        reply = await self._send("POST", url, headers, body)
        if not reply.body and reply.status == 200:  # an answer to a revocation
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
        """Return the answer of a token endpoint. Raises ``TokenRefused`` for an error."""
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
            # A request that was not sent may be repeated; a sent one may have used up a code.
            return await repeat(
                send, _RETRY, safe=method == "GET", name=f"the issuer at {redacted(url)}"
            )
        except Untrusted as error:
            raise TokenRefused(f"no token: {error}") from None
        except (Unreachable, Disconnected, Timeout) as error:
            raise TokenRefused(f"no token: {error}", error="unreachable") from None
        except AddressNotAllowed as error:
            # The rest of the text concerns files.
            said, is_guarded, _ = str(error).partition(", which is not allowed")
            advice = (
                ", and only a card names it: name it yourself if it is right (issuer=..., "
                "token_url=...; parley auth login --issuer)"
            )
            raise TokenRefused(f"no token: {said}{advice * bool(is_guarded)}") from None
        except ClientError as error:
            raise TokenRefused(f"no token: {error}") from None

    def _transport_for(self, url: str) -> HttpTransport:
        """Return the transport for an address. Raises ``TokenRefused`` for one that is not
        permitted."""
        try:
            origin = Origin.of(url)
        except ValueError as error:
            raise TokenRefused(f"an issuer has {error}, unlike {redacted(url)[:200]!r}") from None
        http = self._transports.over_network(url)
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
        return self._transports.guarded(http, self._egress or http.egress or Egress())


_SECRETS = ("code", "code_verifier", "refresh_token", "device_code", "subject_token", "actor_token")


def refusal_of(
    answer: Mapping[str, Any], status: int, url: str, secrets: tuple[str, ...]
) -> TokenRefused:
    """Return the error in an issuer's answer, without secrets that it may have echoed."""
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
    """Return the error code for an answer without one."""
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


# -- issuers ----------------------------------------------------------------------------------

OPENID = "/.well-known/openid-configuration"
RFC_8414 = "/.well-known/oauth-authorization-server"
RFC_9728 = "/.well-known/oauth-protected-resource"
MAX_DOCUMENTS = 16
MAX_AGE = 600.0


class TokenIssuer(msgspec.Struct, frozen=True, kw_only=True):
    """An authorization server: its known endpoints.

    ``url`` is its identifier, empty if only a card's flow names its endpoints. ``is_named`` is true
    if the user named it.
    """

    url: str = ""
    authorization_url: str = ""
    token_url: str = ""
    refresh_url: str = ""
    device_url: str = ""
    registration_url: str = ""
    revocation_url: str = ""
    auth_methods: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()
    sends_iss: bool = False
    is_named: bool = False

    @property
    def key(self) -> str:
        """The identity of the issuer, for comparisons."""
        return self.url or self.token_url

    def owns(self, page: str) -> bool:
        """Return whether a page is at the origin of the issuer or of its token endpoint.

        Pages named by the user are always accepted.
        """
        own = (_origin(self.url), _origin(self.token_url))
        return self.is_named or _origin(page) in own

    def keeping_refresh_tokens(self) -> TokenIssuer:
        """Return the issuer without endpoints at foreign origins that would get refresh tokens."""
        own = _origin(self.token_url)
        return msgspec.structs.replace(
            self,
            refresh_url=self.refresh_url if _origin(self.refresh_url) == own else "",
            revocation_url=self.revocation_url if _origin(self.revocation_url) == own else "",
        )


def check_page(page: str) -> None:
    """Raise ``TokenRefused`` for a login page with an invalid address."""
    origin = _origin(page)
    if origin is None or origin.is_plaintext:
        raise TokenRefused(f"{redacted(page)[:200]!r} is not an https address for a login page")


class Issuers:
    """Finds issuers, and caches their metadata for ten minutes."""

    def __init__(self, http: IssuerHttp) -> None:
        self.http = http
        self._documents: Bounded[str, tuple[float, dict[str, Any]]] = Bounded(MAX_DOCUMENTS)

    async def find(
        self,
        scheme: SecurityScheme | None,
        *,
        issuer: str = "",
        token_url: str = "",
        hinted: str = "",
    ) -> TokenIssuer:
        """Return the issuer of a scheme.

        ``issuer`` and ``token_url`` come from the user; ``hinted`` is an issuer that a challenge
        named and that may be contacted. Raises ``TokenRefused`` if no issuer is named.
        """
        if issuer:
            found = msgspec.structs.replace(await self.discover(issuer), is_named=True)
        else:
            found = await self._of_scheme(scheme)
            if not found.key and hinted:
                found = await self.discover(hinted)
        if token_url:
            found = msgspec.structs.replace(
                found, token_url=token_url, refresh_url="", is_named=True
            )
        if not issuer:
            found = found.keeping_refresh_tokens()
        if not found.token_url:
            raise TokenRefused(
                "nothing names an endpoint that gives tokens: name the issuer (issuer=...)"
            )
        return found

    async def discover(self, issuer: str) -> TokenIssuer:
        """Return the issuer with this identifier, from its metadata."""
        parts = urlsplit(issuer)
        path = parts.path.rstrip("/")
        candidates = [
            urlunsplit(parts._replace(path=path + OPENID)),
            urlunsplit(parts._replace(path=RFC_8414 + path)),
        ]
        failure: TokenRefused | None = None
        for url in candidates:
            try:
                document = await self._document(url)
            except TokenRefused as error:
                failure = failure or error
                continue
            return _of_metadata(document, url, issuer)
        raise failure or TokenRefused(f"{redacted(issuer)} has no metadata")

    async def hinted_by(self, resource_metadata: str, agent: Origin) -> list[str]:
        """Return the issuers that an agent's metadata names (RFC 9728), at its own origin only."""
        origin = _origin(resource_metadata)
        if origin is None or not agent.covers(origin):
            return []
        document = await self._document(resource_metadata)
        resource = document.get("resource")
        of_resource = _origin(resource) if isinstance(resource, str) else None
        if of_resource is None or not agent.covers(of_resource):
            return []
        named = document.get("authorization_servers")
        return [each for each in named if isinstance(each, str)] if isinstance(named, list) else []

    async def _of_scheme(self, scheme: SecurityScheme | None) -> TokenIssuer:
        if scheme is None:
            return TokenIssuer()
        if scheme.open_id_connect_security_scheme is not None:
            url = scheme.open_id_connect_security_scheme.open_id_connect_url
            return _of_metadata(await self._document(url), url, "")
        oauth = scheme.oauth2_security_scheme
        if oauth is None:
            return TokenIssuer()
        if oauth.oauth2_metadata_url:
            url = oauth.oauth2_metadata_url
            return _of_metadata(await self._document(url), url, "")
        flows = oauth.flows
        if flows.authorization_code is not None:
            code = flows.authorization_code
            return TokenIssuer(
                authorization_url=code.authorization_url,
                token_url=code.token_url,
                refresh_url=code.refresh_url,
            )
        if flows.client_credentials is not None:
            own = flows.client_credentials
            return TokenIssuer(token_url=own.token_url, refresh_url=own.refresh_url)
        if flows.device_code is not None:
            device = flows.device_code
            return TokenIssuer(
                device_url=device.device_authorization_url,
                token_url=device.token_url,
                refresh_url=device.refresh_url,
            )
        if flows.password is not None:
            return TokenIssuer(token_url=flows.password.token_url)
        return TokenIssuer()

    async def _document(self, url: str) -> dict[str, Any]:
        held = self._documents.get(url)
        if held is not None and time.monotonic() - held[0] < MAX_AGE:
            return held[1]
        document = await self.http.get_json(url)
        self._documents[url] = (time.monotonic(), document)
        return document


def names_issuer(scheme: SecurityScheme, issuer: str) -> bool:
    """Return whether a card's scheme names an issuer, by the origin of its addresses."""
    there = _origin(issuer)
    oauth = scheme.oauth2_security_scheme
    openid = scheme.open_id_connect_security_scheme
    urls = [openid.open_id_connect_url] if openid else []
    if oauth is not None:
        urls.append(oauth.oauth2_metadata_url)
        flows = oauth.flows
        known = (flows.authorization_code, flows.client_credentials, flows.device_code)
        urls += [flow.token_url for flow in known if flow is not None]
    return there is not None and any(_origin(url) == there for url in urls if url)


def _of_metadata(document: Mapping[str, Any], url: str, expected: str) -> TokenIssuer:
    """Return the issuer of a metadata document. Raises ``TokenRefused`` for another issuer's."""
    issuer = document.get("issuer")
    if not isinstance(issuer, str) or not issuer:
        raise TokenRefused(f"{redacted(url)} names no issuer; expected metadata of one")
    if (issuer != expected) if expected else not _is_at(url, issuer):
        wanted = expected or "the issuer at this address"
        raise TokenRefused(
            f"{redacted(url)} is the metadata of {redacted(issuer)[:200]!r}, not of {wanted!r}: "
            "a metadata document must name the issuer at whose address it is found"
        )

    def text(name: str) -> str:
        value = document.get(name)
        return value if isinstance(value, str) else ""

    def texts(name: str) -> tuple[str, ...]:
        value = document.get(name)
        found = value if isinstance(value, list) else []
        return tuple(each for each in found if isinstance(each, str))

    return TokenIssuer(
        url=issuer,
        authorization_url=text("authorization_endpoint"),
        token_url=text("token_endpoint"),
        device_url=text("device_authorization_endpoint"),
        registration_url=text("registration_endpoint"),
        revocation_url=text("revocation_endpoint"),
        auth_methods=texts("token_endpoint_auth_methods_supported"),
        scopes=texts("scopes_supported"),
        sends_iss=document.get("authorization_response_iss_parameter_supported") is True,
    )


def _is_at(url: str, issuer: str) -> bool:
    """Return whether the metadata of an issuer may be found at an address.

    An address that has no well-known form may have the metadata of any issuer at its origin.
    """
    try:
        at, of = urlsplit(url), urlsplit(issuer)
    except ValueError:
        return False
    if _origin(url) is None or _origin(url) != _origin(issuer):
        return False
    path = of.path.rstrip("/")
    if at.path.endswith(OPENID) and at.path != OPENID + path:
        return at.path == path + OPENID
    for known in (RFC_8414, OPENID):
        if at.path.startswith(known):
            return at.path.rstrip("/") == known + path
    return True


def _origin(url: str) -> Origin | None:
    try:
        return Origin.of(url) if url else None
    except ValueError:
        return None
