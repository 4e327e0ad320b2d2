"""One delivery attempt: the HTTP POST of a notification, and its outcome.

``WebhookDelivery`` calls it. It has no state except connections, and does not decide about retries.
"""

from __future__ import annotations

import asyncio
import errno
import hmac
import json
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Awaitable, Callable, Mapping
from hashlib import sha256
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, unquote

import msgspec
from msgspec.structs import replace

from parley.model.backoff import seconds_of
from parley.model.bounded import Bounded
from parley.push.proofs import ProofFailed, Proofs, WebhookAttempt
from parley.push.scheduler import DeliveryCall, DestinationBusy
from parley.security.egress import Egress, find_cause, find_forbidden
from parley.security.outbound import guarded_session, read_start
from parley.security.response_limits import ResponseLimitExceeded
from parley.store.protocols.webhooks import PushRecord
from parley.wire import versions

if TYPE_CHECKING:
    import ssl

    import aiohttp
    from aiohttp.abc import AbstractResolver

NOTIFICATION_ID = "A2A-Notification-Id"
"""The idempotency key: by this header a receiver recognises a notification sent twice."""

WEBHOOK_ID, WEBHOOK_TIMESTAMP = "webhook-id", "webhook-timestamp"
"""The same id and the time of the attempt, by the names of Standard Webhooks."""

TOKEN = "X-A2A-Notification-Token"

# Under the five seconds after which common servers close an idle connection.
KEEP_ALIVE = 4.0
_RETRYABLE = (408, 425, 429)
_GONE = 410
_UNAUTHORIZED = 401
_WITH_RETRY_AFTER = (429, 503)
_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class WebhookAnswer(NamedTuple):
    """The answer of a webhook. Header names are as the webhook wrote them.

    The body is only read for an answer to a challenge.
    """

    status: int
    headers: Mapping[str, str] = {}
    body: bytes = b""


WebhookTransport = Callable[[str, Mapping[str, str], bytes], Awaitable[WebhookAnswer]]
"""Sends a body with headers to a URL, and returns the answer. Raises ``OSError``."""


class DeliveryFailure(NamedTuple):
    """The reason why an attempt failed, without secrets.

    ``is_final``: no retry will succeed. ``is_refusal``: the webhook answers, and its operator has
    to change something first. ``is_local``: the fault is in this server, and nothing was sent.
    ``is_held_back``: nothing was sent, because the destination's limit of requests is reached.
    ``retry_after``: the seconds that the webhook asks for, if any. ``status`` of the answer, 0
    without one.
    """

    reason: str
    is_final: bool = False
    is_refusal: bool = False
    is_local: bool = False
    is_held_back: bool = False
    retry_after: float | None = None
    status: int = 0


class HttpSender:
    """Sends notifications to addresses that ``egress`` allows, without proxies or redirects.

    ``proofs`` authenticate this server. ``transport``, which replaces HTTP, is for tests. A sender
    belongs to the event loop that uses it first.
    """

    def __init__(
        self,
        egress: Egress,
        *,
        timeout: float,
        transport: WebhookTransport | None = None,
        proofs: Proofs | None = None,
    ) -> None:
        self._egress = egress
        self.proofs = proofs or Proofs(egress)
        self._timeout = timeout
        self._resolver: AbstractResolver | None = None
        self._transport = transport
        self._sessions: dict[bool, aiohttp.ClientSession] = {}

    async def post(
        self,
        push: PushRecord,
        body: bytes,
        notification_id: str,
        requests: DeliveryCall | None = None,
        trace_headers: Mapping[str, str] = {},
    ) -> WebhookAnswer | DeliveryFailure:
        """Send a body to a webhook. Return its answer if it accepts (any 2xx)."""
        try:
            push = self.opened(push)
        except ProofFailed as error:
            return DeliveryFailure(str(error), is_refusal=error.is_refusal)
        at = int(self.proofs.clock())
        headers = {**trace_headers, **headers_of(push, notification_id, at)}
        attempt = WebhookAttempt(
            push, body, notification_id, at, task_of(notification_id),
            "" if requests is None else requests.caller, self._session_of, requests,
        )  # fmt: skip
        return _judged(await self._send_proved(attempt, headers))

    def opened(self, push: PushRecord) -> PushRecord:
        """Return a record with its secrets decrypted. Raises ``ProofFailed``."""
        return replace(push, config=self.proofs.secrets.opened(push.config))

    async def _send_proved(
        self, attempt: WebhookAttempt, headers: Mapping[str, str]
    ) -> WebhookAnswer | DeliveryFailure:
        """Send with a proof, and once more after a 401 if there may be a newer proof."""
        config, proofs = attempt.push.config, self.proofs
        if self._transport is None and not self._sessions:
            await asyncio.to_thread(import_module, "aiohttp")  # the first import is slow
        try:
            tls = proofs.tls(config.authentication)
            for is_last in (False, True):
                async with asyncio.timeout(self._timeout):
                    proved = await proofs.headers(attempt)
                answer = await self.send(config.url, {**headers, **proved}, attempt.body, tls)
                if (
                    is_last
                    or answer.status != _UNAUTHORIZED
                    or not proofs.is_renewed(attempt, proved)
                    or not (attempt.requests is None or attempt.requests.permit())
                ):
                    break
        except ProofFailed as error:
            return DeliveryFailure(str(error), is_refusal=error.is_refusal)
        except TimeoutError:
            return DeliveryFailure(f"there is no proof of the sender in {self._timeout:g} s")
        return answer

    async def send(
        self,
        url: str,
        headers: Mapping[str, str],
        body: bytes,
        tls: ssl.SSLContext | None = None,
        longest: int = 0,
    ) -> WebhookAnswer | DeliveryFailure:
        """Send a body; return the answer, with up to ``longest`` bytes of its body."""
        if self._transport is None and not self._sessions:  # the first import is slow
            await asyncio.to_thread(import_module, "aiohttp")
        import aiohttp
        import yarl

        try:
            if self._transport is not None:
                async with asyncio.timeout(self._timeout):
                    return await self._transport(url, headers, body)
            address = yarl.URL(url)
            session = self._session_of(address.host or "")
            async with (
                asyncio.timeout(self._timeout),
                session.post(
                    address,
                    data=body,
                    headers=headers,
                    allow_redirects=False,
                    ssl=True if tls is None else tls,
                ) as response,
            ):
                found = await read_start(response.content, longest) if longest else b""
                return WebhookAnswer(response.status, response.headers, found)
        except TimeoutError:
            return DeliveryFailure(f"no answer in {self._timeout:g} s")
        except aiohttp.ClientConnectorCertificateError:  # also a ValueError
            return DeliveryFailure("its certificate is not trusted")
        except (aiohttp.InvalidURL, ValueError):
            return DeliveryFailure("the URL cannot be called", is_final=True)
        except (aiohttp.ClientError, OSError) as error:
            forbidden = find_forbidden(error)
            if forbidden is not None:
                return DeliveryFailure(f"it is {forbidden.where}", is_final=True)
            if find_cause(error, DestinationBusy) is not None:
                return DeliveryFailure("its limit of requests is reached", is_held_back=True)
            if isinstance(error, OSError) and error.errno in _OUT_OF_RESOURCES:
                return DeliveryFailure("this server has no room for a connection", is_local=True)
            if find_cause(error, ResponseLimitExceeded) is not None:
                return DeliveryFailure("its answer exceeds the limits")
            return DeliveryFailure(f"it cannot be reached ({type(error).__name__})")

    async def close(self) -> None:
        """Close all connections."""
        await self.proofs.close()
        sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            await session.close()

    def _session_of(self, host: str) -> aiohttp.ClientSession:
        """Return the session for a host: guarded, unless the operator trusts the host by name."""
        return self._session(self._egress.trusts(host))

    def _session(self, is_trusted: bool) -> aiohttp.ClientSession:
        session = self._sessions.get(is_trusted)
        if session is None:
            import aiohttp

            session = self._sessions[is_trusted] = guarded_session(
                self._egress,
                trusted=is_trusted,
                resolver=self._resolver,
                options={
                    "timeout": aiohttp.ClientTimeout(total=None),
                    "auto_decompress": False,
                    "headers": {"User-Agent": "Parley"},
                },
                limit=0,
                keepalive_timeout=KEEP_ALIVE,
            )
        return session


def headers_of(push: PushRecord, notification_id: str, at: int) -> dict[str, str]:
    """Return the headers of every notification, sent at a time in seconds since 1970."""
    headers = {
        "Content-Type": versions.dialect(push.version).http_json.media_type,
        "A2A-Version": push.version,
        NOTIFICATION_ID: notification_id,
        WEBHOOK_ID: notification_id,
        WEBHOOK_TIMESTAMP: str(at),
    }
    if push.config.token:
        headers[TOKEN] = push.config.token
    return headers


def notification_id(task_id: str, push_id: str, seq: int | str) -> str:
    """Return the id of an event's notification, the same for every attempt."""
    return f"{quoted(task_id)}/{quoted(push_id)}/{seq}"


def quoted(text: str) -> str:
    """Return a part of an id, without the full stops that separate the signed parts."""
    return quote(text, safe="").replace(".", "%2E")


def task_of(notification_id: str) -> str:
    """Return the id of the task that a notification is about, empty for a direct reply."""
    task_id, is_event, _ = notification_id.partition("/")
    return unquote(task_id) if is_event else ""


def _judged(answer: WebhookAnswer | DeliveryFailure) -> WebhookAnswer | DeliveryFailure:
    """Return an answer that accepts, or the failure."""
    status = answer.status
    if isinstance(answer, DeliveryFailure) or 200 <= status < 300:
        return answer
    failure = DeliveryFailure(f"it answers with HTTP {status}", status=status)
    if 300 <= status < 400:
        reason = f"{failure.reason}, and redirects are not followed"
        return failure._replace(reason=reason, is_refusal=True)
    if status == _GONE:
        return failure._replace(reason=f"{failure.reason}: it is gone", is_final=True)
    return failure._replace(
        is_refusal=400 <= status < 500 and status not in _RETRYABLE,
        retry_after=seconds_of(answer.headers.get("Retry-After"))
        if status in _WITH_RETRY_AFTER
        else None,
    )


# -- challenges -------------------------------------------------------------------------------

CHALLENGE_HEADER = "A2A-Webhook-Challenge"
CHALLENGE_VERSION = "v1"
PREFIX = "parley-webhook-challenge:v1:"

LONGEST_RESPONSE = 4096
"""The maximum number of bytes of an answer that are read."""

CONFIRMED_KEPT = 10_000
"""The number of confirmed receivers in memory; the store keeps the confirmation of each webhook."""


def response_to(challenge: str, token: str) -> str:
    """Return the response to a challenge by the receiver with a token, which may be empty."""
    digest = hmac.new(token.encode(), f"{PREFIX}{challenge}".encode(), sha256).digest()
    return urlsafe_b64encode(digest).rstrip(b"=").decode()


class Challenges:
    """Asks receivers for their confirmation: once for each owner, URL and token."""

    def __init__(self, sender: HttpSender) -> None:
        self._sender = sender
        self._confirmed: Bounded[bytes, None] = Bounded(CONFIRMED_KEPT)

    def is_confirmed(self, caller: str, push: PushRecord) -> bool:
        """Return whether a caller's webhook needs no challenge."""
        key = _key(caller, push)
        if push.confirmed:
            self._confirmed[key] = None
        return key in self._confirmed

    async def ask(
        self, push: PushRecord, requests: DeliveryCall
    ) -> WebhookAnswer | DeliveryFailure:
        """Challenge a receiver. Return its answer once it has confirmed."""
        try:
            config = self._sender.opened(push).config
            # A webhook that requires the server's certificate could not answer otherwise.
            tls = self._sender.proofs.tls(config.authentication)
        except ProofFailed as error:
            return DeliveryFailure(str(error), is_refusal=error.is_refusal)
        challenge = secrets.token_urlsafe(32)
        headers = {"Content-Type": "application/json", CHALLENGE_HEADER: CHALLENGE_VERSION}
        body = json.dumps({"challenge": challenge}).encode()
        answer = await self._sender.send(config.url, headers, body, tls, LONGEST_RESPONSE)
        if isinstance(answer, DeliveryFailure):
            return answer._replace(reason=f"challenge not answered: {answer.reason}")
        given = _response_in(answer.body) if answer.status == 200 else None
        if given is None:
            what = f"it answers with HTTP {answer.status}"
            if answer.status == 200:
                what = 'the answer is not {"response": "..."}'
        elif hmac.compare_digest(given, response_to(challenge, config.token).encode()):
            self._confirmed[_key(requests.caller, push)] = None
            return answer
        else:
            what = "the response is wrong: it is not made with the configuration's token"
        reason = f"challenge not answered: {what}"
        is_refusal = answer.status < 500 and answer.status not in (408, 425, 429)
        return DeliveryFailure(reason, is_refusal=is_refusal, status=answer.status)


def _key(caller: str, push: PushRecord) -> bytes:
    """Return the key of a confirmation: the caller and the address, without the token.

    Other addresses at the same origin may belong to another party, and are challenged again.
    """
    config = push.config
    return sha256(json.dumps([caller, config.url, config.token]).encode()).digest()


class _Response(msgspec.Struct):
    response: str


def _response_in(body: bytes) -> bytes | None:
    """Return the response in an answer, ``None`` if there is none."""
    try:
        return msgspec.json.decode(body, type=_Response).response.encode()
    except (ValueError, RecursionError):
        return None
