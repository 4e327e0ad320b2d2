"""HTTP authentication: Basic, and Bearer with a function of the operator that checks tokens."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import inspect
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence

from parley.model.cards import HTTPAuthSecurityScheme, SecurityScheme
from parley.model.errors import an
from parley.model.ids import may_be_name
from parley.model.service import Caller
from parley.security.credentials import (
    MAX_PASSWORD,
    PasswordHash,
    Slots,
    VerdictCache,
    checked_seconds,
    hash_password,
    normal,
)
from parley.security.evidence import Evidence, SchemeResources
from parley.security.schemes.scheme import (
    CredentialsRefused,
    Proof,
    Scheme,
    asked,
    bearer_challenge,
    challenge,
    checked_name,
    proof_of,
)

# -- basic ------------------------------------------------------------------------------------

Users = Mapping[str, str] | Callable[[str, str], Caller | Awaitable[Caller | None] | None]
"""Password hashes by user, or a function of user and password that returns the caller."""

CACHE_SECONDS = 30.0

MAX_CHECKS = 4
"""The number of concurrent password checks: each needs a thread, memory and time."""

MAX_CREDENTIALS = 4096

_REFUSED = "the user or the password is wrong"


class Basic(Scheme):
    """HTTP Basic. ``users`` maps user names to password hashes (``Basic.hash``).

    ``users`` may also be a function of user and password that returns the caller, with ``scopes``,
    or ``None``. A plain ``def`` runs in a thread. The verdict is cached for ``cache_seconds``, by a
    hash under a key of this process: an old password is accepted that long after a change. Use it
    over TLS only: every request carries the password.
    """

    credential = "basic"

    def __init__(
        self,
        users: Users,
        *,
        name: str = "basic",
        realm: str = "parley",
        cache_seconds: float = CACHE_SECONDS,
        description: str = "",
    ) -> None:
        self.name = checked_name(name)
        self._realm = realm
        self._description = description
        self._hashes = _hashes(users) if isinstance(users, Mapping) else None
        self._function = None if isinstance(users, Mapping) else users
        if self._function is not None and not callable(self._function):
            raise TypeError(
                "users is a mapping of users to password hashes, or a function of a user and a "
                f"password, not {an(type(users).__name__)}"
            )
        self._verdicts: VerdictCache[Proof] = VerdictCache(checked_seconds(cache_seconds))
        self._key = os.urandom(32)
        self._decoy: PasswordHash | None = None
        self._slots = Slots(MAX_CHECKS)

    def __repr__(self) -> str:
        return f"Basic({self.name!r})"

    @staticmethod
    def hash(password: str) -> str:
        """Return the hash of a password, for ``users``."""
        return hash_password(password)

    def declared(self) -> SecurityScheme:
        """Return the scheme as a card has it."""
        return SecurityScheme(
            http_auth_security_scheme=HTTPAuthSecurityScheme(
                scheme="Basic", description=self._description
            )
        )

    def is_presented(self, evidence: Evidence) -> bool:
        """Return whether a request has a user and a password."""
        return any(scheme == "basic" for scheme, _ in evidence.authorization)

    def claimed(self, evidence: Evidence) -> str:
        """Return the user name in a request."""
        try:
            return _user_and_password(evidence)[0]
        except CredentialsRefused:
            return ""

    def verify(self, evidence: Evidence) -> Proof | Awaitable[Proof]:
        """Return the proof of a user name and password.

        Raises ``CredentialsRefused``, ``OverloadedError``, ``TooManyRequestsError``.
        """
        user, password = _user_and_password(evidence)
        text = f"{user}:{password}".encode()  # user names have no colon
        key = hashlib.blake2b(text, key=self._key, digest_size=32).digest()
        found = self._verdicts.get(key, evidence.now())
        return found if isinstance(found, Proof) else self._find(key, user, password, evidence)

    async def knows(self, id: str, resources: SchemeResources) -> bool:
        """Return whether an id is a user name of the mapping."""
        return self._hashes is not None and id in self._hashes

    def challenge(
        self, evidence: Evidence | None = None, *, error: str = "", scopes: Sequence[str] = ()
    ) -> str:
        """Return the value of ``WWW-Authenticate`` that asks for user and password."""
        return challenge("Basic", realm=self._realm, charset="UTF-8")

    async def _find(self, key: bytes, user: str, password: str, evidence: Evidence) -> Proof:
        found = await self._verdicts.find(
            key, evidence.now(), lambda: self._ask(user, password, evidence)
        )
        if found is None:
            raise CredentialsRefused(self._reason(user), _REFUSED)
        return found

    def _reason(self, user: str) -> str:
        """Return the reason for the log. An unknown user name is not shown: it may be a
        password."""
        if self._hashes is None:
            return "a user and a password that the function of Basic does not accept"
        return f"a wrong password for the user {user!r}" if user in self._hashes else "no such user"

    async def _ask(self, user: str, password: str, evidence: Evidence) -> Proof | None:
        async with self._slots.one():
            evidence.check_failures()
            caller = await self._caller(user, password)
        if caller is None:
            return None
        return proof_of(caller, self.name, "users returns a Caller or None, not")

    async def _caller(self, user: str, password: str) -> Caller | None:
        if self._function is not None:
            return await asked(self._function, user, password)
        is_right = await asyncio.to_thread(self._matches, user, password)
        return Caller(id=user) if is_right else None

    def _matches(self, user: str, password: str) -> bool:
        """Return whether the password is right. Takes as long for an unknown user."""
        assert self._hashes is not None
        found = self._hashes.get(user)
        if found is not None:
            return found.matches(password)
        if self._decoy is None:
            some = next(iter(self._hashes.values()), None)
            self._decoy = some or PasswordHash.of(hash_password("decoy"))
        self._decoy.matches(password)
        return False


def _hashes(users: Mapping[str, str]) -> dict[str, PasswordHash]:
    """Return the hashes of a mapping. Raises ``ValueError`` without quoting them."""
    found = {}
    for user, text in users.items():
        if not isinstance(user, str) or not user or ":" in user or not may_be_name(user):
            raise ValueError(f"a user is text without colons and control characters: {user!r}")
        try:
            found[normal(user)] = PasswordHash.of(text)
        except ValueError as error:
            raise ValueError(f"the user {user!r}: {error}") from None
    return found


def _user_and_password(evidence: Evidence) -> tuple[str, str]:
    """Return the single user name and password of a request. Raises ``CredentialsRefused``."""
    found = _only_credentials(evidence, "basic")
    right = "send Authorization: Basic <base64 of user:password in UTF-8>"
    if len(found) > MAX_CREDENTIALS:
        raise CredentialsRefused("Basic credentials that are too long", right)
    try:
        text = base64.b64decode(found, validate=True).decode()
    except (binascii.Error, ValueError):
        raise CredentialsRefused("malformed Basic credentials", right) from None
    user, colon, password = text.partition(":")
    user, password = normal(user), normal(password)
    if not colon or not user or not may_be_name(user) or len(password) > MAX_PASSWORD:
        raise CredentialsRefused("malformed Basic credentials", right)
    return user, password


# -- bearer -----------------------------------------------------------------------------------

Judge = Callable[[str], Caller | Awaitable[Caller | None] | None]
"""Returns the caller of a token, ``None`` for a token to reject."""


class BearerScheme(Scheme):
    """A scheme whose credentials are bearer tokens (RFC 6750)."""

    credential = "bearer"

    def is_presented(self, evidence: Evidence) -> bool:
        """Return whether a request has a bearer token."""
        return any(scheme == "bearer" for scheme, _ in evidence.authorization)

    def challenge(
        self, evidence: Evidence | None = None, *, error: str = "", scopes: Sequence[str] = ()
    ) -> str:
        """Return the value of ``WWW-Authenticate`` that asks for a token."""
        return bearer_challenge(error=error, scopes=scopes)


class Bearer(BearerScheme):
    """A bearer token of any kind. ``judge`` returns its caller, with ``scopes``, or ``None``.

    ``judge`` is called on the event loop for every request. A slow check should be an ``async
    def``.
    """

    def __init__(
        self, judge: Judge, *, name: str = "bearer", format: str = "", description: str = ""
    ) -> None:
        if not callable(judge):
            raise TypeError(f"Bearer takes a function of a token, not {judge!r}")
        self.name = checked_name(name)
        self._judge = judge
        self._format = format
        self._description = description

    def __repr__(self) -> str:
        return f"Bearer({self.name!r})"

    def declared(self) -> SecurityScheme:
        """Return the scheme as a card has it."""
        return SecurityScheme(
            http_auth_security_scheme=HTTPAuthSecurityScheme(
                scheme="Bearer", bearer_format=self._format, description=self._description
            )
        )

    async def verify(self, evidence: Evidence) -> Proof:
        """Return the token's proof. Raises ``CredentialsRefused``."""
        token = bearer_token(evidence)
        caller = self._judge(token)
        if inspect.isawaitable(caller):
            caller = await caller
        if caller is None:
            raise CredentialsRefused("an unknown token", "the bearer token is not accepted here")
        return proof_of(caller, self.name, "the function of Bearer returns a Caller or None, not")


def bearer_token(evidence: Evidence) -> str:
    """Return the single bearer token of a request. Raises ``CredentialsRefused``."""
    token = _only_credentials(evidence, "bearer")
    if not token or not token.isascii() or " " in token:
        raise CredentialsRefused("a malformed bearer token", "send Authorization: Bearer <token>")
    return token


def _only_credentials(evidence: Evidence, kind: str) -> str:
    """Return the single credentials of a request. Raises ``CredentialsRefused``."""
    if len(evidence.authorization) != 1 or evidence.authorization[0][0] != kind:
        raise CredentialsRefused("several Authorization headers", "send one Authorization header")
    return evidence.authorization[0][1]
