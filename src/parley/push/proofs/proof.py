"""The protocol of a proof: how a webhook knows its sender. The tokens of client credentials."""

from __future__ import annotations

import asyncio
import base64
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from urllib.parse import quote_plus, urlsplit

import msgspec

from parley.model.concurrency import SingleFlight
from parley.model.operations import server_of
from parley.push.jobs import DestinationBusy, further_requests
from parley.security.egress import Egress, ForbiddenAddress, find_cause, find_forbidden
from parley.security.outbound import read_start
from parley.security.response_limits import ResponseLimitExceeded
from parley.store.protocols.webhooks import PushRecord

if TYPE_CHECKING:
    import ssl

    import aiohttp

Problem = tuple[str, str]
"""A field of a configuration, and its right form. Repeats no secret."""

WrongUrl = Callable[[str], str]
"""Returns the fault of an address that this server shall call, empty for a right address."""

SCHEME, CREDENTIALS = "authentication.scheme", "authentication.credentials"


class WebhookAttempt(NamedTuple):
    """One attempt to deliver a body to a webhook.

    ``id`` is the delivery's, ``at`` the time of this attempt in seconds since 1970.
    ``task_id`` is empty for a direct reply. ``caller`` owns the configuration. ``session`` returns
    the guarded connections to a host.
    """

    push: PushRecord
    body: bytes
    id: str
    at: int
    task_id: str
    caller: str
    session: Callable[[str], aiohttp.ClientSession]

    @property
    def credentials(self) -> str:
        """The credentials of the configuration."""
        authentication = self.push.config.authentication
        return "" if authentication is None else authentication.credentials


class ProofFailed(Exception):
    """There is no proof, so nothing is sent. The message says why, and holds no secret.

    ``is_refusal``: somebody has to change something first.
    """

    def __init__(self, reason: str, *, is_refusal: bool = False) -> None:
        super().__init__(reason)
        self.is_refusal = is_refusal


class WebhookProof(Protocol):
    """One way to prove the sender. Has no state of a single delivery.

    ``sends_secret``: whoever reads a delivery could send others, so plain http is refused.
    """

    sends_secret: bool

    def problems(self, credentials: str, url: str, wrong_url: WrongUrl) -> Iterator[Problem]:
        """Yield the faults of the credentials of a configuration, and of its ``url``."""
        ...

    async def headers(self, attempt: WebhookAttempt) -> Mapping[str, str]:
        """Return the headers that prove the sender. Raises ``ProofFailed``."""
        ...

    def tls(self) -> ssl.SSLContext | None:
        """Return the TLS context of the connection; ``None`` for the default.

        Raises ``ProofFailed``.
        """
        ...

    def is_renewed(self, attempt: WebhookAttempt, sent: Mapping[str, str]) -> bool:
        """Note a 401. Return whether headers other than the sent ones may help."""
        ...


class StaticProof:
    """What most proofs share: the default connection, and no second try after a 401."""

    sends_secret = True

    def tls(self) -> ssl.SSLContext | None:
        """Return ``None``: the connection is as for any webhook."""
        return None

    def is_renewed(self, attempt: WebhookAttempt, sent: Mapping[str, str]) -> bool:
        """Return ``False``: the same headers would be sent again."""
        return False


def may_be_plain(host: str, egress: Egress) -> bool:
    """Return whether secrets may go to a host over plain http: the operator allows this host, by
    its name or as one of its networks.

    Decided by what the URL says. A public name is never meant by "private networks".
    """
    if egress.trusts(host):
        return True
    try:
        egress.check_host(host)
    except ForbiddenAddress:
        return False
    try:
        Egress().check_host(host)
    except ForbiddenAddress:
        return True
    return False


# -- client token -----------------------------------------------------------------------------

log = logging.getLogger("parley.push")

BASIC, POST = METHODS = ("client_secret_basic", "client_secret_post")

TIMEOUT = 8.0
MAX_BYTES = 64 * 1024
MAX_TOKEN = 16 * 1024

RENEWED_BEFORE = 60.0
"""The seconds before its end that a token is renewed; a fifth of its time, if that is less."""

DEFAULT_LIFETIME = 300.0
"""The seconds that a token is kept whose endpoint does not say how long it is valid."""

MAX_LIFETIME = 24 * 3600.0

PAUSE, PAUSE_AFTER_REFUSAL = 1.0, 10.0
"""The seconds that an endpoint is left alone after it failed, or refused."""

_TOKEN = re.compile(r"[\x21-\x7e]+")
_ERROR = re.compile(r"[a-z0-9_.-]{1,64}")


class TokenRequest(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    """What to ask of a token endpoint. Shows no secret where it is printed."""

    token_url: str
    client_id: str
    client_secret: str
    scope: str = ""
    audience: str = ""
    resource: str = ""
    auth_method: str = BASIC

    def __repr__(self) -> str:
        return f"TokenRequest(token_url='{server_of(self.token_url)}/...')"


class ClientToken:
    """A token and how long it is good. One request is under way at a time."""

    def __init__(self, request: TokenRequest, monotonic: Callable[[], float]) -> None:
        self._request = request
        self._monotonic = monotonic
        self._value = ""
        self._renew_at = self._expires_at = self._next_attempt = 0.0
        self._failure: ProofFailed | None = None
        self._session: Callable[[str], aiohttp.ClientSession]
        self._flight = SingleFlight(self._renew)

    def __repr__(self) -> str:
        return f"ClientToken({self._request!r})"

    async def get(self, session: Callable[[str], aiohttp.ClientSession]) -> str:
        """Return a valid token, through the connections of ``session``. Raises ``ProofFailed``."""
        now = self._monotonic()
        if self._value and now < self._renew_at:
            return self._value
        if now >= self._next_attempt:
            self._session = session
            await self._flight.join()
        if self._value and self._monotonic() < self._expires_at:
            return self._value
        failure = self._failure
        raise ProofFailed(
            str(failure or "the request for an access token was interrupted"),
            is_refusal=failure is not None and failure.is_refusal,
        )

    def drop(self, value: str) -> None:
        """Forget a token that a webhook refused, unless there is another one by now."""
        if value and value == self._value:
            self._value, self._next_attempt = "", 0.0

    async def close(self) -> None:
        """End the request that is under way."""
        await self._flight.close()

    async def _renew(self) -> None:
        try:
            value, lifetime = await self._obtain()
        except ProofFailed as failure:
            log.info("%s", failure)
            self._failure = failure
            pause = PAUSE_AFTER_REFUSAL if failure.is_refusal else PAUSE
            self._next_attempt = self._monotonic() + pause
            return
        now = self._monotonic()
        self._value, self._failure, self._next_attempt = value, None, 0.0
        self._expires_at = now + lifetime
        self._renew_at = self._expires_at - min(RENEWED_BEFORE, lifetime / 5)

    async def _obtain(self) -> tuple[str, float]:
        """Return a new token and the seconds that it is valid. Raises ``ProofFailed``."""
        import aiohttp

        where = f"the token endpoint at {server_of(self._request.token_url)}"
        host = urlsplit(self._request.token_url).hostname or ""
        form, headers = self._form()
        further = further_requests.get()
        try:
            with nullcontext() if further is None else further.token(host):
                return _read_answer(where, *await self._post(host, form, headers))
        except TimeoutError:
            raise ProofFailed(f"{where} does not answer in {TIMEOUT:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            forbidden = find_forbidden(error)
            if forbidden is not None:
                raise ProofFailed(f"{where} is {forbidden.where}", is_refusal=True) from None
            if find_cause(error, DestinationBusy) is not None:
                raise ProofFailed(f"{where} gets as many requests as it may") from None
            if find_cause(error, ResponseLimitExceeded) is not None:
                raise ProofFailed(f"{where} answers with more than an answer may take") from None
            reason = type(error).__name__
            raise ProofFailed(f"{where} cannot be reached ({reason})") from None

    async def _post(
        self, host: str, form: dict[str, str], headers: dict[str, str]
    ) -> tuple[int, bytes]:
        """Post a form to the endpoint. Return the status and the body of the answer."""
        async with (
            asyncio.timeout(TIMEOUT),
            self._session(host).post(
                self._request.token_url, data=form, headers=headers, allow_redirects=False
            ) as response,
        ):
            body = await read_start(response.content, MAX_BYTES + 1)
            if len(body) > MAX_BYTES:
                raise ResponseLimitExceeded
            return response.status, body

    def _form(self) -> tuple[dict[str, str], dict[str, str]]:
        """Return the form and the headers of a request."""
        asked = self._request
        form = {"grant_type": "client_credentials"}
        headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        for name in ("scope", "audience", "resource"):
            if value := getattr(asked, name):
                form[name] = value
        if asked.auth_method == POST:
            form |= {"client_id": asked.client_id, "client_secret": asked.client_secret}
        else:  # RFC 6749 §2.3.1
            pair = f"{quote_plus(asked.client_id)}:{quote_plus(asked.client_secret)}"
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode('ascii')}"
        return form, headers


def _read_answer(where: str, status: int, body: bytes) -> tuple[str, float]:
    try:
        content: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        content = {}
    if status != 200:
        error = content.get("error")
        reason = f": {error}" if isinstance(error, str) and _ERROR.fullmatch(error) else ""
        raise ProofFailed(
            f"{where} answers with HTTP {status}{reason}",
            is_refusal=300 <= status < 500 and status not in (408, 425, 429),
        )
    value, kind = content.get("access_token"), content.get("token_type")
    if not isinstance(value, str) or len(value) > MAX_TOKEN or not _TOKEN.fullmatch(value):
        raise ProofFailed(f"{where} answers without an access token")
    if not isinstance(kind, str) or kind.lower() != "bearer":
        raise ProofFailed(f"{where} answers with a token that is not of the type Bearer")
    lifetime = content.get("expires_in", DEFAULT_LIFETIME)
    if isinstance(lifetime, str) and lifetime.isdecimal() and len(lifetime) < 16:
        lifetime = float(lifetime)
    if isinstance(lifetime, bool) or not isinstance(lifetime, (int, float)) or lifetime <= 0:
        lifetime = DEFAULT_LIFETIME
    return value, min(float(lifetime), MAX_LIFETIME)
