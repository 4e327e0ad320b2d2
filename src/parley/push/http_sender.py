"""One delivery attempt: the HTTP POST of a notification, and its outcome.

``WebhookDelivery`` calls it. It keeps no state but connections, and decides nothing about retries.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from parley.model.retry_after import seconds_of
from parley.security.egress import Egress, find_cause, find_forbidden
from parley.security.response_limits import ResponseLimitExceeded, bounded_connector
from parley.store.protocols.webhooks import PushRecord
from parley.wire import versions

if TYPE_CHECKING:
    import aiohttp
    from aiohttp.abc import AbstractResolver

NOTIFICATION_ID = "A2A-Notification-Id"
"""The idempotency key: by this header a receiver recognises a notification sent twice."""

TOKEN = "X-A2A-Notification-Token"

# Under the five seconds after which common servers close an idle connection.
KEEP_ALIVE = 4.0
_RETRYABLE = (408, 425, 429)
_GONE = 410
_WITH_RETRY_AFTER = (429, 503)
_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class WebhookAnswer(NamedTuple):
    """The answer of a webhook: its body is not read. Header names are as the webhook wrote them."""

    status: int
    headers: Mapping[str, str] = {}


WebhookTransport = Callable[[str, Mapping[str, str], bytes], Awaitable[WebhookAnswer]]
"""Sends a body with headers to a URL, and returns the answer. Raises ``OSError``."""


class DeliveryFailure(NamedTuple):
    """The reason why an attempt failed. Holds no secrets.

    ``is_final``: no retry will succeed. ``is_refusal``: the webhook answers, and its operator has
    to change something first. ``is_local``: the fault is here, and nothing was sent.
    ``retry_after``: the seconds that the webhook asks for, if it does.
    """

    reason: str
    is_final: bool = False
    is_refusal: bool = False
    is_local: bool = False
    retry_after: float | None = None


class HttpSender:
    """Sends notifications to addresses that ``egress`` allows, without proxies or redirects.

    ``resolver`` and ``transport``, which replaces HTTP, are for tests. A sender belongs to the
    event loop that uses it first.
    """

    def __init__(
        self,
        egress: Egress,
        *,
        timeout: float,
        resolver: AbstractResolver | None = None,
        transport: WebhookTransport | None = None,
    ) -> None:
        self._egress = egress
        self._timeout = timeout
        self._resolver = resolver
        self._transport = transport
        self._sessions: dict[bool, aiohttp.ClientSession] = {}

    async def post(
        self, push: PushRecord, body: bytes, notification_id: str
    ) -> DeliveryFailure | None:
        """Send a body to a webhook. Return ``None`` once it accepts (any 2xx)."""
        if self._transport is not None:
            return await self._post_by(self._transport, push, body, notification_id)
        if not self._sessions:  # the first import takes a while
            await asyncio.to_thread(import_module, "aiohttp")
        import aiohttp
        import yarl

        try:
            url = yarl.URL(push.config.url)
            session = self._session(self._egress.trusts(url.host or ""))
            async with (
                asyncio.timeout(self._timeout),
                session.post(
                    url, data=body, headers=headers_of(push, notification_id), allow_redirects=False
                ) as response,
            ):
                return _failure_of(response.status, response.headers)  # the body is not read
        except TimeoutError:
            return DeliveryFailure(f"no answer in {self._timeout:g} s")
        except (aiohttp.InvalidURL, ValueError):
            return DeliveryFailure("the URL cannot be called", is_final=True)
        except (aiohttp.ClientError, OSError) as error:
            forbidden = find_forbidden(error)
            if forbidden is not None:
                return DeliveryFailure(f"it is at a {forbidden.kind} address", is_final=True)
            if isinstance(error, OSError) and error.errno in _OUT_OF_RESOURCES:
                return DeliveryFailure("this server has no room for a connection", is_local=True)
            if find_cause(error, ResponseLimitExceeded) is not None:
                return DeliveryFailure("it answers with more than an answer may take")
            return DeliveryFailure(f"it cannot be reached ({type(error).__name__})")

    async def _post_by(
        self, transport: WebhookTransport, push: PushRecord, body: bytes, notification_id: str
    ) -> DeliveryFailure | None:
        try:
            async with asyncio.timeout(self._timeout):
                answer = await transport(push.config.url, headers_of(push, notification_id), body)
        except TimeoutError:
            return DeliveryFailure(f"no answer in {self._timeout:g} s")
        except OSError as error:
            return DeliveryFailure(f"it cannot be reached ({type(error).__name__})")
        return _failure_of(answer.status, answer.headers)

    async def close(self) -> None:
        """Close all connections."""
        sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            await session.close()

    def _session(self, is_trusted: bool) -> aiohttp.ClientSession:
        session = self._sessions.get(is_trusted)
        if session is None:
            import aiohttp

            options: dict[str, Any] = {"limit": 0, "keepalive_timeout": KEEP_ALIVE}
            if is_trusted:
                connector = bounded_connector(use_dns_cache=False, **options)
            else:
                connector = self._egress.connector(resolver=self._resolver, **options)
            session = self._sessions[is_trusted] = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None),
                auto_decompress=False,
                trust_env=False,
                headers={"User-Agent": "Parley"},
            )
        return session


def headers_of(push: PushRecord, notification_id: str) -> dict[str, str]:
    """Return the headers of a notification."""
    headers = {
        "Content-Type": versions.dialect(push.version).http_json.media_type,
        "A2A-Version": push.version,
        NOTIFICATION_ID: notification_id,
    }
    authentication = push.config.authentication
    if authentication is not None and authentication.credentials:
        headers["Authorization"] = f"{authentication.scheme} {authentication.credentials}"
    if push.config.token:
        headers[TOKEN] = push.config.token
    return headers


def notification_id(task_id: str, push_id: str, seq: int) -> str:
    """Return the id of an event's notification, the same for every attempt."""
    return f"{quote(task_id, safe='')}/{quote(push_id, safe='')}/{seq}"


def _failure_of(status: int, headers: Mapping[str, str]) -> DeliveryFailure | None:
    reason = f"it answers with HTTP {status}"
    if 200 <= status < 300:
        return None
    if 300 <= status < 400:
        return DeliveryFailure(f"{reason}, and redirects are not followed", is_refusal=True)
    if status == _GONE:
        return DeliveryFailure(f"{reason}: it is gone", is_final=True)
    retry_after = None
    if status in _WITH_RETRY_AFTER:
        retry_after = seconds_of(headers.get("Retry-After"))
    is_refusal = 400 <= status < 500 and status not in _RETRYABLE
    return DeliveryFailure(reason, is_refusal=is_refusal, retry_after=retry_after)
