"""A received delivery, and the verification of its sender and its bytes.

Each ``verify_...`` is one scheme of ``docs/reference/extensions/push-proofs.md``. Secrets are
compared in constant time, and appear in no log, error or repr.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import inspect
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from parley.model.errors import A2AError, OverloadedError
from parley.model.tasks import Event, Task, TaskStatusUpdateEvent
from parley.push.http_sender import NOTIFICATION_ID, TOKEN, WEBHOOK_ID, WEBHOOK_TIMESTAMP
from parley.push.proofs import SIGNATURE, secrets_in, signature
from parley.security.evidence import Evidence, SchemeResources
from parley.security.schemes.scheme import CredentialsRefused, Scheme
from parley.wire.json.syntax import without_bom

# -- limits -----------------------------------------------------------------------------------


class ReceiverLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a receiver. Times are in seconds.

    A body has at most ``max_bytes``, and arrives within ``body_timeout``. At most ``queue``
    notifications of ``queue_bytes`` together wait or are handled; beyond that the answer is 503.
    ``concurrency`` handlers run at once, each for another task. A delivery may be ``max_age`` old.
    A handled id is remembered for ``remember``. A task stays with a dead replica for ``lease``.
    ``drain`` is the time for the queue at the end.

    Raises ``ValueError`` for a value out of range.
    """

    max_bytes: int = 8 * 1024 * 1024
    body_timeout: float = 30.0
    queue: int = 1000
    queue_bytes: int = 64 * 1024 * 1024
    concurrency: int = 16
    max_age: float = 300.0
    remember: float = 48 * 3600.0
    lease: float = 15.0
    drain: float = 10.0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            least = 0 if name == "drain" else 1
            if not least <= value <= 2**40:
                raise ValueError(f"{name} is {least} or more, not {value}")
        if self.queue_bytes < self.max_bytes:
            raise ValueError("queue_bytes is max_bytes at least, or the largest body never fits")
        if self.remember < 2 * self.max_age:
            raise ValueError(
                "remember is twice max_age at least, or a delivery could be replayed when it is "
                "forgotten"
            )


DEFAULT_LIMITS = ReceiverLimits()


# -- request ----------------------------------------------------------------------------------

AUTHORIZATION = "authorization"
TOKENS = (TOKEN.lower(), "a2a-notification-token")
"""The header of a configuration's token; the official Go SDK sends it by the second name."""

MAX_ID = 2048
"""The characters of a delivery's id."""


class NotificationRefused(Exception):
    """A delivery is rejected. ``reason`` is for the log of the receiver, without secrets.

    ``status`` is the answer's, which does not contain the reason: 401 for a missing or wrong proof,
    403 for a proof for another receiver or time, 400 and others for a malformed request.
    """

    def __init__(self, status: int, reason: str, *, retry_after: int = 0) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.retry_after = retry_after


class DeliveredRequest(msgspec.Struct, frozen=True):
    """The headers of a delivery, by names in lower case, and its bytes.

    ``now`` is the time, from which a proved time may differ by ``max_age`` seconds.
    """

    headers: Mapping[str, tuple[str, ...]]
    body: bytes
    now: float
    max_age: float = DEFAULT_LIMITS.max_age

    @classmethod
    def of(
        cls,
        headers: Iterable[tuple[bytes, bytes]],
        body: bytes,
        now: float,
        max_age: float = DEFAULT_LIMITS.max_age,
    ) -> DeliveredRequest:
        """Return a request with the headers of ASGI."""
        found: dict[str, tuple[str, ...]] = {}
        for name, value in headers:
            key = name.decode("latin-1").lower()
            found[key] = (*found.get(key, ()), value.decode("latin-1").strip(" \t"))
        return cls(found, body, now, max_age)

    def header(self, name: str) -> str:
        """Return the value of a header, empty without it.

        Raises ``NotificationRefused`` for a duplicate: another reader could use the other value.
        """
        values = self.headers.get(name, ())
        if len(values) > 1:
            raise NotificationRefused(400, f"the header {name} is there {len(values)} times")
        return values[0] if values else ""

    @property
    def id(self) -> str:
        """The id of the delivery, empty without one. Raises ``NotificationRefused``."""
        found, other = self.header(WEBHOOK_ID), self.header(NOTIFICATION_ID.lower())
        if found and other and found != other:
            raise NotificationRefused(400, f"{WEBHOOK_ID} and {NOTIFICATION_ID.lower()} differ")
        return checked_id(found or other)

    @property
    def timestamp(self) -> int | None:
        """The time of the attempt. Raises ``NotificationRefused`` unless it is a number."""
        text = self.header(WEBHOOK_TIMESTAMP)
        if not text:
            return None
        if not (text.isascii() and text.isdecimal() and len(text) <= 12):
            raise NotificationRefused(400, f"{WEBHOOK_TIMESTAMP} is not a number of seconds")
        return int(text)

    def check_age(self, moment: float) -> None:
        """Raise ``NotificationRefused`` for a time that is too far from now."""
        if abs(self.now - moment) > self.max_age:
            what = "old" if moment < self.now else "far ahead"
            raise NotificationRefused(403, f"the delivery is {abs(self.now - moment):.0f} s {what}")


def checked_id(id: str) -> str:
    """Return the id of a delivery. Raises ``NotificationRefused`` for an id that is unsafe to
    log."""
    if len(id) > MAX_ID or not id.isascii() or not id.isprintable():
        raise NotificationRefused(400, "the id of the delivery is malformed")
    return id


class Verified(msgspec.Struct, frozen=True):
    """The result of a proof: its ``scheme``, and the ids that it covers, if any.

    ``sender`` distinguishes several accepted senders, whose ids are independent.
    """

    scheme: str
    id: str = ""
    task_id: str | None = None
    sender: str = ""


# -- notification -----------------------------------------------------------------------------


class PushNotification(msgspec.Struct, kw_only=True, weakref=True, eq=False):
    """A notification that was delivered and verified.

    ``event`` is a ``Task``, a ``TaskStatusUpdateEvent``, a ``TaskArtifactUpdateEvent`` or a
    ``Message``; a 0.3 agent sends the whole ``Task`` each time. ``id`` is the id of the delivery,
    equal for repeats, or empty if the sender gives none. ``version`` is the protocol's; ``sent_at``
    the time of the attempt in seconds since 1970, if the sender gives it; ``verified_by`` the
    scheme that proved the sender, empty with ``verify=False``; ``sender`` distinguishes several
    accepted senders.

    A receiver sets ``fetch``, and for a handler in a thread its event ``loop``.
    """

    event: Event
    id: str = ""
    version: str = "1.0"
    sent_at: int | None = None
    verified_by: str = ""
    sender: str = ""
    body: bytes = b""
    fetch: Callable[[str], Awaitable[Task]] | None = None
    loop: asyncio.AbstractEventLoop | None = None

    def __repr__(self) -> str:
        return f"PushNotification(id={self.id!r}, event={self.event!r})"

    @property
    def task_id(self) -> str:
        """The id of the task; empty for a direct message."""
        return task_id_of(self.event)

    @property
    def context_id(self) -> str:
        """The id of the context."""
        return self.event.context_id

    @property
    def is_final(self) -> bool:
        """True if the task has ended with this event."""
        event = self.event
        return isinstance(event, Task | TaskStatusUpdateEvent) and event.status.state.is_terminal

    @property
    def number(self) -> int | None:
        """The number of the event in the task's log, if the id of the delivery contains it."""
        return number_of(self.id)[1]

    async def task(self) -> Task:
        """Fetch the current task from the agent.

        Raises ``ValueError`` for a direct message and for a receiver without ``agent=``, and the
        errors of ``RemoteAgent.get``.
        """
        if not self.task_id:
            raise ValueError("a direct message has no task")
        if self.fetch is None:
            raise ValueError(
                "the receiver knows no agent to fetch tasks from: give it "
                "agent=lambda: parley.connect(url, ...)"
            )
        return await self.fetch(self.task_id)

    def task_sync(self) -> Task:
        """Fetch the task, in a handler that is a plain function."""
        if self.loop is None:
            raise RuntimeError("task_sync() is for handlers that are plain functions; await task()")
        return asyncio.run_coroutine_threadsafe(self.task(), self.loop).result()


def task_id_of(event: Event) -> str:
    """Return the id of an event's task, empty for a message that has none."""
    return event.id if isinstance(event, Task) else event.task_id


def lane_of(event: Event, id: str) -> str:
    """Return the lane, in which notifications are ordered: the task, else the context."""
    return task_id_of(event) or event.context_id or id


def number_of(id: str) -> tuple[str, int | None]:
    """Return the text before the number at the end of an id, and the number."""
    prefix, slash, number = id.rpartition("/")
    if slash and number.isascii() and number.isdecimal() and len(number) <= 18:
        return prefix, int(number)
    return id, None


class _Body(msgspec.Struct):
    """The members that distinguish the versions."""

    kind: Any = None
    task: Any = None
    message: Any = None
    statusUpdate: Any = None
    artifactUpdate: Any = None

    @property
    def version(self) -> str:
        is_0_3 = self.kind is not None or (
            self.task is None
            and self.message is None
            and self.statusUpdate is None
            and self.artifactUpdate is None
        )
        return "0.3" if is_0_3 else "1.0"


def read_event(body: bytes) -> tuple[Event, str]:
    """Return the event in a body, and the protocol version of the body.

    The version is derived from the body, as some senders do not state it. Raises ``ValueError``.
    """
    from parley.wire import versions

    body = without_bom(body)
    try:
        version = msgspec.json.decode(body, type=_Body).version
        return versions.dialect(version).jsonrpc.read_event(body), version
    except (A2AError, msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ValueError(f"the body is no event: {str(error)[:300]}") from None


# -- verification -----------------------------------------------------------------------------

MAX_SIGNATURES = 10

Check = Callable[[DeliveredRequest], Awaitable[Verified]]
"""Returns the proof of a delivery. Raises ``NotificationRefused``."""


class WebhookVerification:
    """A verification of senders, made by a ``verify_...`` function.

    ``challenge_token`` answers challenges of ownership, ``close`` cancels requests in progress.
    """

    def __init__(
        self,
        check: Check,
        *,
        challenge_token: str = "",
        close: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self.check = check
        self.challenge_token = challenge_token
        self._close = close

    async def close(self) -> None:
        """Cancel the requests in progress."""
        if self._close is not None:
            await self._close()


Verify = WebhookVerification | Check | Sequence["WebhookVerification | Check"]
"""A verification, an ``async def`` of the user, or several that must all succeed."""


async def verify(
    headers: Iterable[tuple[bytes, bytes]],
    body: bytes,
    by: Verify | Literal[False],
    *,
    max_age: float = DEFAULT_LIMITS.max_age,
    now: Callable[[], float] = time.time,
) -> PushNotification:
    """Return the notification in a request with the headers of ASGI.

    ``by`` is the verification of its sender; ``False`` accepts notifications from everyone. Repeats
    are only recognizable by ``id``. Raises ``NotificationRefused``.
    """
    request = DeliveredRequest.of(headers, body, now(), max_age)
    verified = Verified("") if by is False else await verification_of(by).check(request)
    id, sent_at = checked_id(verified.id) or request.id, request.timestamp
    if by is not False and sent_at is not None:
        request.check_age(sent_at)
    try:
        event, version = read_event(body)
    except ValueError as error:
        raise NotificationRefused(400, str(error)) from None
    if verified.task_id is not None and verified.task_id != task_id_of(event):
        raise NotificationRefused(401, "a JWT of another task")
    return PushNotification(
        event=event,
        id=id,
        version=version,
        sent_at=sent_at,
        verified_by=verified.scheme,
        sender=verified.sender,
        body=body,
    )


def verification_of(given: Any) -> WebhookVerification:
    """Return a verification; of a list all must accept. Raises ``TypeError``, ``ValueError``."""
    if isinstance(given, WebhookVerification):
        return given
    if isinstance(given, list | tuple):
        return _all_of([verification_of(each) for each in given])
    if inspect.iscoroutinefunction(given):
        return WebhookVerification(given)
    raise TypeError(
        "verify= takes verify_hmac(secret), verify_jwt(issuer=..., audience=...) and the like, or "
        f"an async def of a request, not {'a text' if isinstance(given, str) else repr(given)}"
    )


def _all_of(parts: Sequence[WebhookVerification]) -> WebhookVerification:
    if not parts:
        raise ValueError("a list for verify= has verifications; verify=False accepts everyone")

    async def check(request: DeliveredRequest) -> Verified:
        found = [await each.check(request) for each in parts]
        return Verified(
            " + ".join(each.scheme for each in found),
            id=next((each.id for each in found if each.id), ""),
            task_id=next((each.task_id for each in found if each.task_id is not None), None),
            sender=" ".join(each.sender for each in found if each.sender),
        )

    return _joined(parts, check)


def any_of(*alternatives: Verify) -> WebhookVerification:
    """Accept a delivery if any of several verifications does, one for each agent.

    The position of a verification separates its agent's notifications from those by other agents,
    whatever ids they choose: append new verifications.
    """
    parts = [verification_of(each) for each in alternatives]
    if not parts:
        raise ValueError("any_of takes the verifications of which one is enough")

    async def check(request: DeliveredRequest) -> Verified:
        refusals: list[NotificationRefused] = []
        for place, each in enumerate(parts):
            try:
                verified = await each.check(request)
                return replace(verified, sender=f"{place}/{verified.sender}")
            except NotificationRefused as refused:
                refusals.append(refused)
        # Unavailable keys are a reason to retry; a valid but late proof is the most specific error.
        for status in (503, 403, 400):
            for refusal in refusals:
                if refusal.status == status:
                    raise refusal
        raise NotificationRefused(401, "; ".join(each.reason for each in refusals))

    return _joined(parts, check)


def _joined(parts: Sequence[WebhookVerification], check: Check) -> WebhookVerification:
    tokens = [each.challenge_token for each in parts if each.challenge_token]
    return WebhookVerification(
        check,
        challenge_token=tokens[0] if tokens else "",
        close=lambda: asyncio.gather(*[each.close() for each in parts]),
    )


def verify_hmac(*secrets: str) -> WebhookVerification:
    """``HMAC-SHA256``: a signature over id, time and body, as Standard Webhooks defines it.

    Several secrets are for rotation: each is accepted. ``whsec_<base64>`` stands for the decoded
    bytes, any other text for itself.
    """
    given = _texts("verify_hmac", "a secret", secrets)
    keys = [key for each in given for key in secrets_in(each)]

    async def check(request: DeliveredRequest) -> Verified:
        id, timestamp = request.header(WEBHOOK_ID), request.header(WEBHOOK_TIMESTAMP)
        offered = request.header(SIGNATURE)
        if not id or not timestamp or not offered:
            raise NotificationRefused(401, "there is no signature, with an id and a time")
        signed = b".".join((id.encode("latin-1"), timestamp.encode("latin-1"), request.body))
        signatures = [
            text.removeprefix("v1,").encode("latin-1")
            for text in offered.split(" ", MAX_SIGNATURES)[:MAX_SIGNATURES]
            if text.startswith("v1,")
        ]
        is_right = False
        for key in keys:
            expected = signature(key, signed).encode()
            for each in signatures:
                is_right |= hmac.compare_digest(each, expected)
        if not is_right:
            raise NotificationRefused(401, "the signature is wrong")
        moment = request.timestamp
        assert moment is not None
        request.check_age(moment)
        return Verified("HMAC-SHA256", id=id)

    return WebhookVerification(check)


def verify_token(*tokens: str) -> WebhookVerification:
    """The ``token`` of the configuration, in ``X-A2A-Notification-Token``.

    Several tokens are for rotation; the first one answers challenges.
    """
    return _sent("token", TOKENS, _texts("verify_token", "a token", tokens), tokens[0])


def verify_api_key(header: str, *keys: str) -> WebhookVerification:
    """``ApiKey``: a key in a header of its own. Several keys are for rotation."""
    if not header or not header.isascii() or not header.replace("-", "").isalnum():
        raise ValueError(f"verify_api_key takes the name of a header first, not {header!r}")
    return _sent("ApiKey", [header.lower()], _texts("verify_api_key", "a key", keys))


def verify_bearer(*tokens: str) -> WebhookVerification:
    """``Bearer``: a token in ``Authorization``. Several tokens are for rotation."""
    given = _texts("verify_bearer", "a token", tokens)
    return _sent("Bearer", [AUTHORIZATION], [f"bearer {each}" for each in given])


def verify_basic(user: str, *passwords: str) -> WebhookVerification:
    """``Basic``: a user and a password. Several passwords are for rotation."""
    if ":" in user or not user:
        raise ValueError("verify_basic takes a user, without a colon, and a password")
    given = _texts("verify_basic", "a password", passwords)
    pairs = [base64.b64encode(f"{user}:{each}".encode()).decode() for each in given]
    return _sent("Basic", [AUTHORIZATION], [f"basic {each}" for each in pairs])


def _sent(
    scheme: str, headers: Sequence[str], secrets: Sequence[str], challenge_token: str = ""
) -> WebhookVerification:
    """Return the verification of a secret that is sent in a header with one of several names.

    It proves neither a time nor a body.
    """

    async def check(request: DeliveredRequest) -> Verified:
        values = [value for name in headers if (value := request.header(name))]
        if len(values) > 1:
            raise NotificationRefused(400, f"both {' and '.join(headers)} are there")
        if not values:
            raise NotificationRefused(401, f"the header {headers[0]} has no secret")
        given = values[0]
        if headers[0] == AUTHORIZATION:  # the name of a scheme has no case
            name, _, credentials = given.partition(" ")
            given = f"{name.lower()} {credentials.strip(' ')}"
        is_right = False
        for secret in secrets:
            is_right |= hmac.compare_digest(given.encode("latin-1"), secret.encode())
        if not is_right:
            raise NotificationRefused(401, f"the secret in {headers[0]} is wrong")
        return Verified(scheme)

    return WebhookVerification(check, challenge_token=challenge_token)


def _texts(where: str, what: str, given: Sequence[Any]) -> Sequence[str]:
    """Return secrets. Raises ``ValueError`` and ``TypeError``, without any of them."""
    if not given:
        raise ValueError(f"{where} takes {what}")
    for each in given:
        if not isinstance(each, str):
            raise TypeError(f"{where} takes {what} as a text, not {type(each).__name__}")
        if not each:
            raise ValueError(f"{where} takes {what}, and one is empty")
    return given


def verify_access_token(
    scheme: Scheme, *, subjects: tuple[str, ...] | list[str] = ()
) -> WebhookVerification:
    """``OAuth2``: the access token that the agent's server got for this webhook.

    ``scheme`` verifies it: ``Jwt``, ``OAuth2``, ``OpenIdConnect`` or ``Bearer`` of
    ``parley.security``. ``subjects`` are the accounts that may send, as named in their tokens;
    without it, every token that the scheme accepts is sufficient. It proves no body, and only the
    time of its own issue.
    """
    if not isinstance(scheme, Scheme) or scheme.credential != "bearer":
        raise TypeError(
            "verify_access_token takes a scheme for bearer tokens of parley.security, such as "
            f"Jwt(...) or OAuth2(...), not {scheme!r}"
        )
    if isinstance(subjects, str):
        raise TypeError(f"subjects= is a list, such as [{subjects!r}]")
    started: list[Scheme] = []

    async def check(request: DeliveredRequest) -> Verified:
        if not started:
            started.append(scheme)
            await scheme.start(SchemeResources())
        value = request.header(AUTHORIZATION).encode("latin-1")
        evidence = Evidence({"headers": [(b"authorization", value)], "query_string": b""})
        try:
            if not scheme.is_presented(evidence):
                raise NotificationRefused(401, "there is no access token")
            found = scheme.verify(evidence)
            proof = await found if inspect.isawaitable(found) else found
        except CredentialsRefused as refused:
            raise NotificationRefused(401, refused.reason) from None
        except OverloadedError as overloaded:
            raise NotificationRefused(503, str(overloaded), retry_after=5) from None
        except A2AError as error:
            raise NotificationRefused(401, str(error)) from None
        if subjects and proof.caller.id not in subjects:
            raise NotificationRefused(403, "an access token of another account")
        return Verified("OAuth2")

    async def close() -> None:
        if started:
            started.clear()
            await scheme.close()

    return WebhookVerification(check, close=close)


def verify_jwt(
    *,
    issuer: str,
    audience: str | Collection[str],
    jwks_url: str = "",
    keys: Any = None,
    algorithms: Collection[str] = ("ES256", "RS256", "EdDSA"),
    leeway: float = 60.0,
) -> WebhookVerification:
    """``JWT``: a token that the agent's server signs with its keys, over id, time, task and body.

    ``issuer`` is the server's public address, as on its card. Its keys are at ``jwks_url``, by
    default ``/.well-known/jwks.json`` of the issuer; they are fetched, cached, and fetched again
    for an unknown key. ``keys`` gives them instead (JWKs or PEM). Addresses of keys in tokens are
    ignored. ``audience`` is the address of this webhook, or the audience in its configuration;
    several are alternatives. ``leeway`` is the permitted clock difference, in seconds.
    """
    from parley.security.issuers import IssuerClient, KeysUnavailable
    from parley.security.key_sets import ASYMMETRIC, FixedKeys, keys_of
    from parley.security.outbound import Fetcher, checked_url
    from parley.security.schemes.tokens import read_jwt

    issuer = issuer.rstrip("/")
    audiences = (audience,) if isinstance(audience, str) else tuple(audience)
    if not issuer or not audiences or not all(audiences):
        raise ValueError(
            "verify_jwt needs issuer=, the address of the agent's server, and audience=, the "
            "address of this webhook"
        )
    if not algorithms or not set(algorithms) <= set(ASYMMETRIC):
        raise ValueError(f"algorithms= are some of {', '.join(ASYMMETRIC)}")
    if not 0 <= leeway <= 600:
        raise ValueError(f"leeway= is between 0 and 600 seconds, not {leeway:g}")
    if keys is not None and jwks_url:
        raise ValueError("verify_jwt takes jwks_url= or keys=, not both")
    fetcher = Fetcher()
    known: FixedKeys | IssuerClient
    if keys is not None:
        known = FixedKeys(keys_of(keys))
    else:
        origin = urlsplit(issuer)
        at = jwks_url or f"{origin.scheme}://{origin.netloc}/.well-known/jwks.json"
        known = IssuerClient(
            fetcher, time.time, jwks_url=checked_url(at, "the address of the keys")
        )

    async def check(request: DeliveredRequest) -> Verified:
        name, _, token = request.header(AUTHORIZATION).partition(" ")
        if name.lower() != "bearer" or not token:
            raise NotificationRefused(401, "there is no JWT")
        try:
            jwt = read_jwt(token.strip(" "))
            if jwt.alg not in algorithms:
                raise NotificationRefused(401, "a JWT with an algorithm that is not accepted")
            if jwt.claims.get("iss") != issuer:
                raise NotificationRefused(401, "a JWT of another issuer")
            key = known.find_now(jwt.kid, jwt.alg) or await known.find(jwt.kid, jwt.alg)
        except CredentialsRefused as refused:
            raise NotificationRefused(401, refused.reason) from None
        except KeysUnavailable as unavailable:
            raise NotificationRefused(
                503,
                f"the keys of {issuer} are unavailable: {unavailable}",
                retry_after=max(1, round(unavailable.retry_after)),
            ) from None
        if key is None or not key.verifies(jwt.alg, jwt.signing_input, jwt.signature):
            raise NotificationRefused(401, "a JWT of an unknown key, or wrongly signed")
        return _check_claims(request, jwt.claims, audiences, leeway)

    async def close() -> None:
        await known.close()
        await fetcher.close()

    return WebhookVerification(check, close=close)


def _check_claims(
    request: DeliveredRequest, claims: dict[str, Any], audiences: Collection[str], leeway: float
) -> Verified:
    """Return the verified claims of a JWT about this delivery, for this receiver and time."""
    named = claims.get("aud")
    if not any(each in audiences for each in (named if isinstance(named, list) else [named])):
        raise NotificationRefused(403, "a JWT for another audience")
    issued, expires = _time_of(claims, "iat"), _time_of(claims, "exp")
    if request.now >= expires + leeway:
        raise NotificationRefused(403, "a JWT that has expired")
    request.check_age(issued)  # not later, because ids are forgotten
    if issued > request.now + leeway:
        raise NotificationRefused(403, "a JWT of a time to come")
    id, task_id = claims.get("jti"), claims.get("taskId")
    if not isinstance(id, str) or not id or request.id not in ("", id):
        raise NotificationRefused(401, "a JWT of another delivery")
    digest = hashlib.sha256(request.body).hexdigest().encode()
    given = claims.get("request_body_sha256")
    if not isinstance(given, str) or not hmac.compare_digest(
        given.encode("utf-8", "replace"), digest
    ):
        raise NotificationRefused(401, "a JWT of another body")
    if task_id is not None and not isinstance(task_id, str):
        raise NotificationRefused(401, "a JWT whose task is no text")
    return Verified("JWT", id=id, task_id=task_id or "")


def _time_of(claims: dict[str, Any], name: str) -> float:
    value = claims.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1e11:
        raise NotificationRefused(401, f"a JWT without {name}")
    return float(value)
