"""A delivery as it arrives, and the verifications of its sender and of its bytes.

Each ``Verify...`` is one scheme of ``docs/extensions/push-proofs.md``. Secrets are compared in
constant time, and are in no log, error or repr.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import inspect
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from parley.model.errors import A2AError, OverloadedError
from parley.model.tasks import Event, Task, TaskStatusUpdateEvent
from parley.security.evidence import Evidence, SchemeResources
from parley.security.schemes.scheme import CredentialsRefused, Scheme
from parley.wire.json.syntax import without_bom

# -- limits -----------------------------------------------------------------------------------


class ReceiverLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a receiver. Times are in seconds.

    A body has ``max_bytes`` at most, and arrives within ``body_timeout``. ``queue`` notifications
    of ``queue_bytes`` together wait or are handled; beyond that the answer is 503. ``concurrency``
    handlers run at once, each for another task. A delivery may be ``max_age`` old. An id that was
    handled is known for ``remember``. A task stays with a replica that has died for ``lease``. At
    the end, ``drain`` is how long the queue may take.

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

ID = "webhook-id"
TIMESTAMP = "webhook-timestamp"
SIGNATURE = "webhook-signature"
NOTIFICATION_ID = "a2a-notification-id"
TOKENS = ("x-a2a-notification-token", "a2a-notification-token")
"""The header of a configuration's token; the official Go SDK sends it by the second name."""

VERSION = "a2a-version"

MAX_ID = 2048
"""The characters of a delivery's id."""


class NotificationRefused(Exception):
    """A delivery is not accepted. ``reason`` is for the log of the receiver, without any secret.

    ``status`` is the answer's, which does not say the reason: 401 for a proof that is missing or
    wrong, 403 for a proof that is not for here or now, 400 and others for a request of another
    form.
    """

    def __init__(self, status: int, reason: str, *, retry_after: int = 0) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.retry_after = retry_after


class DeliveredRequest(msgspec.Struct, frozen=True):
    """The headers of a delivery, by names in lower case, and its bytes. ``now`` is the time."""

    headers: Mapping[str, tuple[str, ...]]
    body: bytes
    now: float

    @classmethod
    def of(
        cls, headers: Iterable[tuple[bytes, bytes]], body: bytes, now: float
    ) -> DeliveredRequest:
        """Return a request with the headers of ASGI."""
        found: dict[str, tuple[str, ...]] = {}
        for name, value in headers:
            key = name.decode("latin-1").lower()
            found[key] = (*found.get(key, ()), value.decode("latin-1").strip(" \t"))
        return cls(found, body, now)

    def header(self, name: str) -> str:
        """Return the value of a header, empty without it.

        Raises ``NotificationRefused`` if it is there twice: another reader may take the other one.
        """
        values = self.headers.get(name, ())
        if len(values) > 1:
            raise NotificationRefused(400, f"the header {name} is there {len(values)} times")
        return values[0] if values else ""

    @property
    def id(self) -> str:
        """The id of the delivery, empty without one. Raises ``NotificationRefused``."""
        found, other = self.header(ID), self.header(NOTIFICATION_ID)
        if found and other and found != other:
            raise NotificationRefused(400, f"{ID} and {NOTIFICATION_ID} differ")
        return checked_id(found or other)

    @property
    def timestamp(self) -> int | None:
        """The time of the attempt. Raises ``NotificationRefused`` unless it is a number."""
        text = self.header(TIMESTAMP)
        if not text:
            return None
        if not (text.isascii() and text.isdecimal() and len(text) <= 12):
            raise NotificationRefused(400, f"{TIMESTAMP} is not a number of seconds")
        return int(text)


def checked_id(id: str) -> str:
    """Return the id of a delivery. Raises ``NotificationRefused`` for one not to be logged."""
    if len(id) > MAX_ID or not id.isascii() or not id.isprintable():
        raise NotificationRefused(400, "the id of the delivery is malformed")
    return id


class Verified(msgspec.Struct, frozen=True):
    """What a proof says: which ``scheme`` it is of, and the ids that it covers, if it does.

    ``sender`` tells senders apart where several are accepted: the ids of one are none of another's.
    """

    scheme: str
    id: str = ""
    task_id: str | None = None
    sender: str = ""


# -- notification -----------------------------------------------------------------------------


class PushNotification:
    """A notification that was delivered and verified.

    ``event`` is a ``Task``, a ``TaskStatusUpdateEvent``, a ``TaskArtifactUpdateEvent`` or a
    ``Message``; a 0.3 agent sends the whole ``Task`` each time. ``id`` is the id of the delivery,
    the same when it comes again, or empty if the sender gives none. ``version`` is the
    protocol's; ``sent_at`` the time of the attempt in seconds since 1970, if the sender says it;
    ``verified_by`` the scheme that proved the sender, empty with ``verify=False``.
    """

    __slots__ = ("_fetch", "_loop", "body", "event", "id", "sent_at", "verified_by", "version")

    def __init__(
        self,
        event: Event,
        *,
        id: str = "",
        version: str = "1.0",
        sent_at: int | None = None,
        verified_by: str = "",
        body: bytes = b"",
        fetch: Callable[[str], Awaitable[Task]] | None = None,
    ) -> None:
        self.event = event
        self.id = id
        self.version = version
        self.sent_at = sent_at
        self.verified_by = verified_by
        self.body = body
        self._fetch = fetch
        self._loop: asyncio.AbstractEventLoop | None = None

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
        """Whether the task has ended with this event."""
        event = self.event
        return isinstance(event, Task | TaskStatusUpdateEvent) and event.status.state.is_terminal

    @property
    def number(self) -> int | None:
        """The number of the event in the task's log, if the id of the delivery says it."""
        return number_of(self.id)[1]

    async def task(self) -> Task:
        """Fetch the task from the agent, as it is now.

        Raises ``ValueError`` for a direct message and for a receiver without ``agent=``; else what
        ``RemoteAgent.get`` raises.
        """
        if not self.task_id:
            raise ValueError("a direct message has no task")
        if self._fetch is None:
            raise ValueError(
                "the receiver knows no agent to fetch tasks from: give it "
                "agent=lambda: parley.connect(url, ...)"
            )
        return await self._fetch(self.task_id)

    def task_sync(self) -> Task:
        """Fetch the task, in a handler that is a plain function."""
        if self._loop is None:
            raise RuntimeError("task_sync() is for handlers that are plain functions; await task()")
        return asyncio.run_coroutine_threadsafe(self.task(), self._loop).result()

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let ``task_sync`` use an event loop: the handler runs in a thread."""
        self._loop = loop


def task_id_of(event: Event) -> str:
    """Return the id of an event's task, empty for a message that has none."""
    return event.id if isinstance(event, Task) else event.task_id


def lane_of(event: Event, id: str) -> str:
    """Return what notifications are ordered by: their task, else their context."""
    return task_id_of(event) or event.context_id or id


def number_of(id: str) -> tuple[str, int | None]:
    """Return the text before the number at the end of an id, and the number."""
    prefix, slash, number = id.rpartition("/")
    if slash and number.isascii() and number.isdecimal() and len(number) <= 18:
        return prefix, int(number)
    return id, None


class _Body(msgspec.Struct):
    """The members that tell the versions apart."""

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
    """Return the event in a body, and the version that it is written in.

    The body decides, as some senders do not say it. Raises ``ValueError``.
    """
    from parley.model.errors import A2AError
    from parley.wire import versions

    body = without_bom(body)
    try:
        version = msgspec.json.decode(body, type=_Body).version
        return versions.dialect(version).jsonrpc.read_event(body), version
    except (A2AError, msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ValueError(f"the body is no event: {str(error)[:300]}") from None


# -- verification -----------------------------------------------------------------------------


MIN_SECRET_BYTES = 24
MAX_SIGNATURES = 10
_UNAUTHORIZED = 401


class WebhookVerification(Protocol):
    """Verifies deliveries. Users may write their own."""

    async def verify(self, request: DeliveredRequest, max_age: float) -> Verified:
        """Return the proof of a delivery. Raises ``NotificationRefused``.

        ``max_age`` is how far the time that it proves may be from ``request.now``, in seconds.
        """
        ...

    async def close(self) -> None:
        """End what is under way."""
        ...


class VerifyHmac:
    """``HMAC-SHA256``: a signature over id, time and body, as Standard Webhooks defines it.

    Several secrets are for rotation: each is accepted. ``whsec_<base64>`` stands for the decoded
    bytes, any other text for itself.
    """

    def __init__(self, *secrets: str) -> None:
        self._secrets = [_hmac_key(each) for each in _texts("VerifyHmac", "a secret", secrets)]

    def __repr__(self) -> str:
        return "VerifyHmac(...)"

    async def verify(self, request: DeliveredRequest, max_age: float) -> Verified:
        """Verify the signature and the time that it covers."""
        id, timestamp = request.header(ID), request.header(TIMESTAMP)
        given = request.header(SIGNATURE)
        if not id or not timestamp or not given:
            raise NotificationRefused(_UNAUTHORIZED, "there is no signature, with an id and a time")
        signed = b".".join((id.encode("latin-1"), timestamp.encode("latin-1"), request.body))
        offered = [
            text.removeprefix("v1,").encode("latin-1")
            for text in given.split(" ", MAX_SIGNATURES)[:MAX_SIGNATURES]
            if text.startswith("v1,")
        ]
        is_right = False
        for secret in self._secrets:
            digest = hmac.digest(secret, signed, hashlib.sha256)
            expected = binascii.b2a_base64(digest, newline=False)
            for each in offered:
                is_right |= hmac.compare_digest(each, expected)
        if not is_right:
            raise NotificationRefused(_UNAUTHORIZED, "the signature is wrong")
        moment = request.timestamp
        assert moment is not None
        check_age(moment, request.now, max_age)
        return Verified("HMAC-SHA256", id=id)

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""


class _VerifySecret:
    """A secret that is sent as it is, in one header, which may have several names."""

    scheme = ""

    def __init__(self, headers: Sequence[str], secrets: Sequence[bytes]) -> None:
        self._headers = tuple(headers)
        self._secrets = tuple(secrets)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(...)"

    async def verify(self, request: DeliveredRequest, max_age: float) -> Verified:
        """Verify the secret. It proves no time and no body."""
        values = [value for name in self._headers if (value := request.header(name))]
        if len(values) > 1:
            raise NotificationRefused(400, f"both {' and '.join(self._headers)} are there")
        given = self._given(values[0] if values else "")
        header = self._headers[0]
        if given is None:
            raise NotificationRefused(_UNAUTHORIZED, f"the header {header} has no secret")
        is_right = False
        for secret in self._secrets:
            is_right |= hmac.compare_digest(given, secret)
        if not is_right:
            raise NotificationRefused(_UNAUTHORIZED, f"the secret in {header} is wrong")
        return Verified(self.scheme)

    def _given(self, value: str) -> bytes | None:
        """Return the secret in a header's value, ``None`` without one."""
        return value.encode("latin-1") if value else None

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""


class VerifyToken(_VerifySecret):
    """The ``token`` of the configuration, in ``X-A2A-Notification-Token``.

    Several tokens are for rotation; the first one answers challenges.
    """

    scheme = "token"

    def __init__(self, *tokens: str) -> None:
        given = _texts("VerifyToken", "a token", tokens)
        super().__init__(TOKENS, [each.encode() for each in given])
        self.challenge_token = given[0]


class VerifyApiKey(_VerifySecret):
    """``ApiKey``: a key in a header of its own. Several keys are for rotation."""

    scheme = "ApiKey"

    def __init__(self, header: str, *keys: str) -> None:
        if not header or not header.isascii() or not header.replace("-", "").isalnum():
            raise ValueError(f"VerifyApiKey takes the name of a header first, not {header!r}")
        given = _texts("VerifyApiKey", "a key", keys)
        super().__init__([header.lower()], [each.encode() for each in given])


class VerifyBearer(_VerifySecret):
    """``Bearer``: a token in ``Authorization``. Several tokens are for rotation."""

    scheme = "Bearer"

    def __init__(self, *tokens: str) -> None:
        given = _texts("VerifyBearer", "a token", tokens)
        super().__init__(["authorization"], [each.encode() for each in given])

    def _given(self, value: str) -> bytes | None:
        return credentials_of(value, "bearer")


class VerifyBasic(_VerifySecret):
    """``Basic``: a user and a password. Several passwords are for rotation."""

    scheme = "Basic"

    def __init__(self, user: str, *passwords: str) -> None:
        if ":" in user or not user:
            raise ValueError("VerifyBasic takes a user, without a colon, and a password")
        given = _texts("VerifyBasic", "a password", passwords)
        super().__init__(["authorization"], [f"{user}:{each}".encode() for each in given])

    def _given(self, value: str) -> bytes | None:
        encoded = credentials_of(value, "basic")
        try:
            return None if encoded is None else base64.b64decode(encoded, validate=True)
        except ValueError:
            return None


class VerifyAny:
    """Accepts a delivery if any of several verifications does: each is another agent's.

    The place of an agent's verification tells its notifications from those by other agents,
    whatever ids they choose: append new verifications.
    """

    def __init__(self, *alternatives: WebhookVerification) -> None:
        if not alternatives:
            raise ValueError("VerifyAny takes the verifications of which one is enough")
        self._alternatives = tuple(map(checked_verification, alternatives))

    def __repr__(self) -> str:
        return f"VerifyAny({', '.join(map(repr, self._alternatives))})"

    async def verify(self, request: DeliveredRequest, max_age: float) -> Verified:
        """Return the proof of the first verification that accepts."""
        refusals: list[NotificationRefused] = []
        for place, each in enumerate(self._alternatives):
            try:
                verified = await each.verify(request, max_age)
                return replace(verified, sender=f"{place}/{verified.sender}")
            except NotificationRefused as refused:
                refusals.append(refused)
        # Keys that cannot be had are a reason to come again; a right proof, too late, says most.
        for status in (503, 403, 400):
            for refusal in refusals:
                if refusal.status == status:
                    raise refusal
        raise NotificationRefused(_UNAUTHORIZED, "; ".join(each.reason for each in refusals))

    @property
    def challenge_token(self) -> str:
        """The token that answers a challenge."""
        return challenge_token(self._alternatives)

    async def close(self) -> None:
        """Close all."""
        for each in self._alternatives:
            await each.close()


class VerifyAll:
    """Every verification of several must accept: the meaning of a list for ``verify=``."""

    def __init__(self, *parts: WebhookVerification) -> None:
        if not parts:
            raise ValueError("VerifyAll takes verifications; verify=False accepts everyone")
        self._parts = tuple(map(checked_verification, parts))

    def __repr__(self) -> str:
        return f"VerifyAll({', '.join(map(repr, self._parts))})"

    async def verify(self, request: DeliveredRequest, max_age: float) -> Verified:
        """Return what all say together."""
        found = [await each.verify(request, max_age) for each in self._parts]
        tasks = [each.task_id for each in found if each.task_id is not None]
        return Verified(
            " + ".join(each.scheme for each in found),
            id=next((each.id for each in found if each.id), ""),
            task_id=tasks[0] if tasks else None,
            sender=" ".join(each.sender for each in found if each.sender),
        )

    @property
    def challenge_token(self) -> str:
        """The token that answers a challenge."""
        return challenge_token(self._parts)

    async def close(self) -> None:
        """Close all."""
        for each in self._parts:
            await each.close()


def challenge_token(verifications: Sequence[object]) -> str:
    """Return the first token that answers a challenge of ownership, empty without one."""
    found = (getattr(each, "challenge_token", "") for each in verifications)
    return next((token for token in found if isinstance(token, str) and token), "")


def checked_verification(given: Any) -> WebhookVerification:
    """Return a verification. Raises ``TypeError``."""
    if isinstance(given, type) or not callable(getattr(given, "verify", None)):
        raise TypeError(
            f"verify= takes VerifyHmac(secret), VerifyJwt(issuer=..., audience=...) and the like, "
            f"not {'a text' if isinstance(given, str) else repr(given)}"
        )
    checked: WebhookVerification = given
    return checked


def check_age(moment: float, now: float, max_age: float) -> None:
    """Raise ``NotificationRefused`` for a time that is too far from now."""
    if abs(now - moment) > max_age:
        what = "old" if moment < now else "far ahead"
        raise NotificationRefused(403, f"the delivery is {abs(now - moment):.0f} s {what}")


def credentials_of(value: str, scheme: str) -> bytes | None:
    """Return the credentials of an ``Authorization`` of a scheme."""
    name, _, credentials = value.partition(" ")
    credentials = credentials.strip(" ")
    if name.lower() != scheme or not credentials:
        return None
    return credentials.encode("latin-1")


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


def _hmac_key(secret: str) -> bytes:
    """Return the bytes that a secret stands for. Raises ``ValueError``, without the secret."""
    if secret.startswith("whsec_"):
        try:
            key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
        except ValueError:
            raise ValueError("a secret that begins with whsec_ goes on in base64") from None
    elif secret.isascii() and secret.isprintable() and " " not in secret:
        key = secret.encode()
    else:
        raise ValueError("a secret is whsec_ and base64, or ASCII without spaces")
    if len(key) < MIN_SECRET_BYTES:
        raise ValueError(f"a secret has {MIN_SECRET_BYTES} bytes or more, not {len(key)}")
    return key


class VerifyAccessToken:
    """``OAuth2``: the access token that the agent's server got for this webhook.

    ``scheme`` judges it: ``Jwt``, ``OAuth2``, ``OpenIdConnect`` or ``Bearer`` of
    ``parley.security``. ``subjects`` are the accounts that may send, as their tokens name them;
    without it, every token that the scheme accepts may.
    """

    def __init__(self, scheme: Scheme, *, subjects: tuple[str, ...] | list[str] = ()) -> None:
        if not isinstance(scheme, Scheme) or scheme.credential != "bearer":
            raise TypeError(
                "VerifyAccessToken takes a scheme for bearer tokens of parley.security, such as "
                f"Jwt(...) or OAuth2(...), not {scheme!r}"
            )
        if isinstance(subjects, str):
            raise TypeError(f"subjects= is a list, such as [{subjects!r}]")
        self._scheme = scheme
        self._subjects = frozenset(subjects)
        self._is_started = False

    def __repr__(self) -> str:
        return f"VerifyAccessToken({self._scheme!r})"

    async def verify(self, request: DeliveredRequest, max_age: float) -> Verified:
        """Verify the token. It proves no body, and the time of its own issue only."""
        value = request.header("authorization")
        if not self._is_started:
            self._is_started = True
            await self._scheme.start(SchemeResources())
        evidence = Evidence(
            {"headers": [(b"authorization", value.encode("latin-1"))], "query_string": b""}
        )
        try:
            if not self._scheme.is_presented(evidence):
                raise NotificationRefused(401, "there is no access token")
            found = self._scheme.verify(evidence)
            proof = await found if inspect.isawaitable(found) else found
        except CredentialsRefused as refused:
            raise NotificationRefused(401, refused.reason) from None
        except OverloadedError as overloaded:
            raise NotificationRefused(503, str(overloaded), retry_after=5) from None
        except A2AError as error:
            raise NotificationRefused(401, str(error)) from None
        if self._subjects and proof.caller.id not in self._subjects:
            raise NotificationRefused(403, "an access token of another account")
        return Verified("OAuth2")

    async def close(self) -> None:
        """End what is under way."""
        if self._is_started:
            self._is_started = False
            await self._scheme.close()


class VerifyJwt:
    """``JWT``: a token that the agent's server signs with its keys, over id, time, task and body.

    ``issuer`` is the server's public address, as its card has it. Its keys are at ``jwks_url``,
    by default ``/.well-known/jwks.json`` of the issuer; they are fetched, kept, and fetched again
    when a key is new. ``keys`` gives them instead (JWKs or PEM). Nothing in a token says where keys
    are. ``audience`` is the address of this webhook, or what its configuration states instead;
    several are alternatives. ``leeway`` is how far clocks may be apart, in seconds.
    """

    def __init__(
        self,
        *,
        issuer: str,
        audience: str | Collection[str],
        jwks_url: str = "",
        keys: Any = None,
        algorithms: Collection[str] = ("ES256", "RS256", "EdDSA"),
        leeway: float = 60.0,
    ) -> None:
        from parley.security.issuers import IssuerClient
        from parley.security.key_sets import ASYMMETRIC, FixedKeys, keys_of
        from parley.security.outbound import Fetcher, checked_url

        self._issuer = issuer.rstrip("/")
        self._audiences = (audience,) if isinstance(audience, str) else tuple(audience)
        self._algorithms = frozenset(algorithms)
        self._leeway = leeway
        self._now: Callable[[], float] = time.time
        if not self._issuer or not self._audiences or not all(self._audiences):
            raise ValueError(
                "VerifyJwt needs issuer=, the address of the agent's server, and audience=, the "
                "address of this webhook"
            )
        if not self._algorithms or not self._algorithms <= set(ASYMMETRIC):
            raise ValueError(f"algorithms= are some of {', '.join(ASYMMETRIC)}")
        if not 0 <= leeway <= 600:
            raise ValueError(f"leeway= is between 0 and 600 seconds, not {leeway:g}")
        self._fetcher = Fetcher()
        self._keys: FixedKeys | IssuerClient
        if keys is not None:
            if jwks_url:
                raise ValueError("VerifyJwt takes jwks_url= or keys=, not both")
            self._keys = FixedKeys(keys_of(keys))
        else:
            url = checked_url(jwks_url or _jwks_url(self._issuer), "the address of the keys")
            self._keys = IssuerClient(self._fetcher, lambda: self._now(), jwks_url=url)

    def __repr__(self) -> str:
        return f"VerifyJwt(issuer={self._issuer!r})"

    async def verify(self, request: DeliveredRequest, max_age: float) -> Verified:
        """Verify the token, and that it is about this delivery, for here and now."""
        from parley.security.schemes.scheme import CredentialsRefused
        from parley.security.schemes.tokens import read_jwt

        token = credentials_of(request.header("authorization"), "bearer")
        if token is None:
            raise NotificationRefused(401, "there is no JWT")
        try:
            jwt = read_jwt(token.decode("latin-1"))
        except CredentialsRefused as refused:
            raise NotificationRefused(401, refused.reason) from None
        if jwt.alg not in self._algorithms:
            raise NotificationRefused(401, "a JWT with an algorithm that is not accepted")
        if jwt.claims.get("iss") != self._issuer:
            raise NotificationRefused(401, "a JWT of another issuer")
        key = await self._key(jwt.kid, jwt.alg)
        if key is None or not key.verifies(jwt.alg, jwt.signing_input, jwt.signature):
            raise NotificationRefused(401, "a JWT of an unknown key, or wrongly signed")
        return self._check_claims(request, jwt.claims, max_age)

    async def close(self) -> None:
        """End fetches that are under way."""
        await self._keys.close()
        await self._fetcher.close()

    async def _key(self, kid: str | None, alg: str) -> Any:
        from parley.security.issuers import KeysUnavailable

        try:
            return self._keys.find_now(kid, alg) or await self._keys.find(kid, alg)
        except KeysUnavailable as unavailable:
            raise NotificationRefused(
                503,
                f"the keys of {self._issuer} cannot be had: {unavailable}",
                retry_after=max(1, round(unavailable.retry_after)),
            ) from None

    def _check_claims(
        self, request: DeliveredRequest, claims: dict[str, Any], max_age: float
    ) -> Verified:
        named = claims.get("aud")
        audiences = named if isinstance(named, list) else [named]
        if not any(each in self._audiences for each in audiences):
            raise NotificationRefused(403, "a JWT for another audience")
        issued, expires = _time_of(claims, "iat"), _time_of(claims, "exp")
        if request.now >= expires + self._leeway:
            raise NotificationRefused(403, "a JWT that has expired")
        check_age(issued, request.now, max_age)  # not later: ids are forgotten
        if issued > request.now + self._leeway:
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


def _jwks_url(issuer: str) -> str:
    """Return where a server publishes its keys: at the root of its origin."""
    parts = urlsplit(issuer)
    return f"{parts.scheme}://{parts.netloc}/.well-known/jwks.json"
