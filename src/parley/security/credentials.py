"""Verification of secrets: password hashes, a cache of verdicts, and slots for slow checks."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import os
import unicodedata
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager
from typing import Final, Generic, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from parley.model.bounded import Bounded
from parley.model.errors import OverloadedError

# -- slots ------------------------------------------------------------------------------------

MAX_WAITING = 100


class Slots:
    """``count`` slots per event loop, since several servers may use a scheme."""

    def __init__(self, count: int, *, waiting: int = MAX_WAITING) -> None:
        self._count = count
        self._most = count + waiting
        self._taken = 0
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = (
            WeakKeyDictionary()
        )

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """Wait for a slot and hold it. Raises ``OverloadedError`` if too many requests wait."""
        if self._taken >= self._most:
            raise OverloadedError("too many credentials wait to be verified", retry_after=1)
        loop = asyncio.get_running_loop()
        slots = self._loops.get(loop)
        if slots is None:
            slots = self._loops[loop] = asyncio.Semaphore(self._count)
        self._taken += 1
        try:
            async with slots:
                yield
        finally:
            self._taken -= 1


# -- verdict cache ----------------------------------------------------------------------------

T = TypeVar("T")

MAX_VERDICTS = 10_000
"""The maximum number of cached good verdicts, and of bad ones."""

MAX_SECONDS = 300.0


class _Unknown:
    """The type of ``UNKNOWN``: there is no verdict yet."""


UNKNOWN: Final = _Unknown()


def checked_seconds(value: float) -> float:
    """Return the number of seconds to keep verdicts. Raises ``ValueError``."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= MAX_SECONDS:
        raise ValueError(f"cache_seconds is 0 (no cache) to {MAX_SECONDS:g}, not {value!r}")
    return float(value)


class VerdictCache(Generic[T]):
    """A cache of verdicts about credentials. ``None`` is a bad verdict.

    Bad verdicts have a separate limit, so that a flood of wrong credentials cannot evict good
    verdicts. Concurrent requests with the same key share one verification. Times are in seconds;
    the age of a verdict counts from the start of its verification.
    """

    def __init__(self, seconds: float, size: int = MAX_VERDICTS) -> None:
        self._seconds = seconds
        self._good: Bounded[Hashable, tuple[float, T]] = Bounded(size)
        self._bad: Bounded[Hashable, float] = Bounded(size)
        # By event loop and key, since several servers may use a scheme.
        self._asked: dict[Hashable, asyncio.Future[T | None]] = {}

    def get(self, key: Hashable, now: float) -> T | _Unknown | None:
        """Return the verdict, or ``UNKNOWN`` if there is no fresh one."""
        found = self._good.get(key)
        if found is not None and 0 <= now - found[0] < self._seconds:
            return found[1]
        at = self._bad.get(key)
        if at is not None and 0 <= now - at < self._seconds:
            return None
        return UNKNOWN

    async def find(
        self, key: Hashable, now: float, ask: Callable[[], Awaitable[T | None]]
    ) -> T | None:
        """Return the verdict. If there is no fresh one, ``ask`` verifies the credentials."""
        while True:
            found = self.get(key, now)
            if not isinstance(found, _Unknown):
                return found
            other = self._asked.get((asyncio.get_running_loop(), key))
            if other is None:
                return await self._ask(key, now, ask)
            await asyncio.wait((other,))
            if not other.cancelled():
                return other.result()

    def forget(self, key: Hashable) -> None:
        """Forget a verdict, including a verification that is running on this event loop."""
        self._good.pop(key, None)
        self._bad.pop(key, None)
        self._asked.pop((asyncio.get_running_loop(), key), None)

    async def _ask(
        self, key: Hashable, now: float, ask: Callable[[], Awaitable[T | None]]
    ) -> T | None:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T | None] = loop.create_future()
        name = (loop, key)
        self._asked[name] = answer
        try:
            verdict = await ask()
        except asyncio.CancelledError:
            answer.cancel()
            raise
        except BaseException as error:
            answer.set_exception(error)
            answer.exception()  # mark it as retrieved: having no other waiter deserves no warning
            raise
        else:
            answer.set_result(verdict)
            if self._asked.get(name) is answer and self._seconds:
                self._keep(key, now, verdict)
            return verdict
        finally:
            if self._asked.get(name) is answer:
                del self._asked[name]

    def _keep(self, key: Hashable, now: float, verdict: T | None) -> None:
        self._good.pop(key, None)
        self._bad.pop(key, None)
        if verdict is None:
            self._bad[key] = now
        else:
            self._good[key] = (now, verdict)


# -- passwords --------------------------------------------------------------------------------

COST, BLOCK_SIZE, PARALLELISM = 2**14, 8, 5
SALT_BYTES = 16
HASH_BYTES = 32

MAX_MEMORY = 256 * 1024 * 1024
MAX_PASSWORD = 1024


class PasswordHash(NamedTuple):
    """The hash of a password. As text: ``scrypt$<cost>$<block>$<parallel>$<salt>$<hash>``."""

    cost: int
    block_size: int
    parallelism: int
    salt: bytes
    digest: bytes

    @classmethod
    def of(cls, text: str) -> PasswordHash:
        """Return the hash in a text. Raises ``ValueError`` without quoting the text."""
        try:
            kind, cost, block_size, parallelism, salt, digest = text.split("$")
            found = cls(
                int(cost),
                int(block_size),
                int(parallelism),
                base64.b64decode(salt, validate=True),
                base64.b64decode(digest, validate=True),
            )
        except (AttributeError, ValueError, binascii.Error):
            raise ValueError(RIGHT_HASH) from None
        n, r, p = found[:3]
        is_cost = n > 1 and n & (n - 1) == 0
        is_bounded = 0 < r <= 32 and 0 < p <= 16 and 128 * n * r <= MAX_MEMORY // 2
        if kind != "scrypt" or not is_cost or not is_bounded:
            raise ValueError(RIGHT_HASH)
        if len(found.salt) < 8 or not 16 <= len(found.digest) <= 64:
            raise ValueError(RIGHT_HASH)
        return found

    def __str__(self) -> str:
        salt, digest = (base64.b64encode(part).decode() for part in (self.salt, self.digest))
        return f"scrypt${self.cost}${self.block_size}${self.parallelism}${salt}${digest}"

    def __repr__(self) -> str:
        return "PasswordHash(...)"

    def matches(self, password: str) -> bool:
        """Return whether this is the hash of a password. Slow: call it in a thread."""
        return hmac.compare_digest(self.digest, _scrypt(password, self, len(self.digest)))


RIGHT_HASH = (
    "a password hash is what `parley keys hash-password` or Basic.hash(password) returns: "
    "scrypt$<cost>$<block size>$<parallelism>$<salt>$<hash>"
)


def hash_password(password: str) -> str:
    """Return the hash of a password. Raises ``ValueError`` for an empty or very long one."""
    if not password or len(password) > MAX_PASSWORD:
        raise ValueError(f"a password has 1 to {MAX_PASSWORD} characters")
    made = PasswordHash(COST, BLOCK_SIZE, PARALLELISM, os.urandom(SALT_BYTES), b"")
    return str(made._replace(digest=_scrypt(password, made, HASH_BYTES)))


def normal(text: str) -> str:
    """Return the normal form in which passwords and user names are compared (RFC 8265)."""
    return unicodedata.normalize("NFC", text)


def _scrypt(password: str, parameters: PasswordHash, length: int) -> bytes:
    return hashlib.scrypt(
        normal(password).encode(),
        salt=parameters.salt,
        n=parameters.cost,
        r=parameters.block_size,
        p=parameters.parallelism,
        maxmem=MAX_MEMORY,
        dklen=length,
    )
