"""The private keys of a server: read from a file or the environment, equal on all replicas.

A key set is a JWK Set (RFC 7517) of private keys. Each key has a ``state``: ``current`` keys sign,
``next`` keys are published before they sign, and ``previous`` keys are published until they expire
(``until``). ``joserfc`` is imported inside functions: few servers need it.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from parley.security.signing.canonical import AmbiguousJson, read_object

# -- private file -----------------------------------------------------------------------------

_NEW = (
    os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
)


class FileExposed(ValueError):
    """A file with secrets can be read or changed by others than its owner."""


def stamp_of(path: Path) -> object:
    """Return a value that changes when a file changes, ``None`` if the file does not exist."""
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino, found.st_mode)


def read_private(path: Path, *, limit: int) -> bytes:
    """Return the content of a file that only its owner may read.

    A file of root may be readable for a group, as secrets in containers are. Raises
    ``FileExposed``, ``OSError``, and ``ValueError`` for a file that is too long.
    """
    with path.open("rb") as file:
        if os.name == "posix":
            _check(path, os.fstat(file.fileno()))
        data = file.read(limit + 1)
    if len(data) > limit:
        raise ValueError(f"{path} has more than {limit:,} bytes, so it is not a key file")
    return data


def _check(path: Path, status: os.stat_result) -> None:
    mode = stat.S_IMODE(status.st_mode)
    of_root = status.st_uid == 0 and os.geteuid() != 0
    if mode & (0o037 if of_root else 0o077):
        raise FileExposed(
            f"{path} has private keys, and other users of this machine can access it (mode "
            f"{mode:04o}): chmod 600 {path}"
        )


class WriteUnderWay(Exception):
    """Another process is writing the file, or was killed while it did."""


@contextmanager
def replacing(path: Path, *, creates: bool = False) -> Iterator[Callable[[bytes], None]]:
    """Return a function that atomically replaces a private file, or creates it (``creates``).

    Only one process at a time gets it, and readers see the old or the new content. The new file
    keeps the owner and the mode of the old one; a created file has mode 0600. Raises
    ``WriteUnderWay``, ``FileExistsError`` if a file to create exists, and ``OSError``.
    """
    path = Path(os.path.realpath(path))  # keeps a symbolic link
    beside = path.with_name(f"{path.name}.new")
    try:
        descriptor = os.open(beside, _NEW, 0o600)
    except FileExistsError:
        raise WriteUnderWay(
            f"another process is changing {path}, or was killed while it did: if no process "
            f"is running, remove {beside}"
        ) from None
    try:
        try:
            if creates and path.exists():
                raise FileExistsError(f"{path} exists already")
            before = None if creates else path.stat()

            def write(content: bytes) -> None:
                _take_over(descriptor, before)
                with os.fdopen(os.dup(descriptor), "wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                written.append(True)

            written: list[bool] = []
            yield write
        finally:
            os.close(descriptor)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    # After the rename, the temporary name may belong to another process.
    if not written:
        beside.unlink(missing_ok=True)
        return
    try:
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _take_over(descriptor: int, before: os.stat_result | None) -> None:
    if not hasattr(os, "fchmod"):
        return  # Windows
    os.fchmod(descriptor, 0o600)  # the umask may have removed the owner's rights
    if before is None:
        return
    made = os.fstat(descriptor)
    if (before.st_uid, before.st_gid) != (made.st_uid, made.st_gid):
        os.fchown(descriptor, before.st_uid, before.st_gid)  # the server must be able to read it
    os.fchmod(descriptor, stat.S_IMODE(before.st_mode))


def _sync_folder(folder: Path) -> None:
    """Make a new name in a folder durable, on systems that can."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# -- keys -------------------------------------------------------------------------------------

log = logging.getLogger("parley.security")

ALGORITHMS = ("ES256", "RS256", "EdDSA")
"""The signature algorithms, the default first. EdDSA is Ed25519."""

KEYS_VARIABLE = "PARLEY_SIGNING_KEYS"
FILE_VARIABLE = "PARLEY_SIGNING_KEYS_FILE"

CURRENT, NEXT, PREVIOUS = "current", "next", "previous"
STATES = (CURRENT, NEXT, PREVIOUS)

MAX_KEYS = 32
MAX_BYTES = 256 * 1024

MIN_RSA_BITS = 2048
MAX_RSA_BITS = 8192

RELOAD_SECONDS = 1.0
"""The minimum interval between checks of a key file."""

_PUBLIC = {"RSA": ("n", "e"), "EC": ("crv", "x", "y"), "OKP": ("crv", "x")}
_PRIVATE = {"RSA": ("d", "p", "q", "dp", "dq", "qi"), "EC": ("d",), "OKP": ("d",)}
_ALGORITHM_OF = {"EC": "ES256", "OKP": "EdDSA", "RSA": "RS256"}
_RESERVED = ("alg", "kid")
_YEAR_10000 = 253402300800  # larger numbers are milliseconds, as JavaScript uses


class SigningKeysInvalid(ValueError):
    """The signing keys cannot be used. The error quotes no part of them."""


def missing_keys(what: str) -> str:
    """Return the error for a feature that needs signing keys, on a server without any."""
    return (
        f"{what} needs signing keys, and this server has none: make a file of them with "
        "`parley keys generate signing-keys.json`, and name it with "
        f"signing_keys=, --signing-keys or {FILE_VARIABLE}"
    )


class SigningKey:
    """A key: its id, its algorithm, and its signatures. The private half is never shown."""

    __slots__ = ("_key", "_public", "alg", "created", "kid", "state", "until")

    def __init__(
        self,
        kid: str,
        alg: str,
        key: Any,
        *,
        public: Mapping[str, str],
        state: str = CURRENT,
        created: float = 0,
        until: float | None = None,
    ) -> None:
        self.kid = kid
        self.alg = alg
        self.state = state
        self.created = created
        self.until = until
        self._key = key
        self._public = dict(public)

    def __repr__(self) -> str:
        return f"SigningKey({self.kid!r}, {self.alg!r}, {self.state!r})"

    def __reduce__(self) -> str:
        raise TypeError("a SigningKey cannot be copied to another process")

    @property
    def public(self) -> dict[str, str]:
        """The public half, as a JWK."""
        return {**self._public, "kid": self.kid, "alg": self.alg, "use": "sig"}

    @property
    def can_sign(self) -> bool:
        """True if the private half is present; a previous key may lack it."""
        return bool(self._key.is_private)

    def is_over(self, now: float) -> bool:
        """Return whether this previous key is no longer published."""
        return self.state == PREVIOUS and self.until is not None and now >= self.until

    def sign(self, data: bytes) -> bytes:
        """Return the signature of bytes in the form of a JWS.

        Equal bytes have equal signatures on all replicas (RFC 6979 for ES256, if the machine's TLS
        library supports it).
        """
        if self.alg == "ES256" and (found := _deterministic(self._key, data)) is not None:
            return found
        from joserfc.jws import JWSRegistry

        signature: bytes = JWSRegistry.algorithms[self.alg].sign(data, self._key)
        return signature

    def jws(self, header: Mapping[str, Any], payload: bytes, detached: bool = False) -> str:
        """Return a compact JWS (RFC 7515 §3.1), without the payload if ``detached`` (appendix F).

        The key adds ``alg`` and ``kid`` to the protected header. Raises ``ValueError`` for a header
        with other values of these.
        """
        protected, signature = self.sign_payload(header, payload)
        return f"{protected}.{'' if detached else encode(payload)}.{signature}"

    def sign_payload(self, header: Mapping[str, Any], payload: bytes) -> tuple[str, str]:
        """Return the protected header and the signature of a JWS, both in base64url."""
        import msgspec

        for name in _RESERVED:
            if header.get(name, mine := getattr(self, name)) != mine:
                raise ValueError(
                    f"{name} of the header is {header[name]!r}, but the key's is {mine!r}"
                )
        content = {"alg": self.alg, "kid": self.kid, **header}
        protected = encode(msgspec.json.encode(content))
        signature = self.sign(f"{protected}.{encode(payload)}".encode("ascii"))
        return protected, encode(signature)


class Reload(NamedTuple):
    """The result of reading a changed key file: the ids of the keys that sign from now on.

    ``error`` is the reason why the file cannot be used; the old keys then stay in use.
    """

    signs: tuple[str, ...]
    error: str = ""


class SigningKeys:
    """The keys of a server, reloaded when their file changes.

    A changed file that cannot be used is logged, and the old keys stay in use, so a running server
    does not stop. All members are thread-safe.
    """

    def __init__(
        self, keys: tuple[SigningKey, ...], *, clock: Callable[[], float] = time.time
    ) -> None:
        self._keys = checked(keys)
        self._clock = clock
        self._revision = 1
        self._path: Path | None = None
        self._stamp: object = None
        self._next_look = 0.0
        self._lock = threading.Lock()
        self._noting: tuple[Callable[[Reload], None], ...] = ()

    def __repr__(self) -> str:
        return f"SigningKeys({', '.join(f'{key.kid} {key.alg} {key.state}' for key in self._keys)})"

    @classmethod
    def load(
        cls,
        given: SigningKeys | str | Path | None = None,
        *,
        environment: Mapping[str, str] | None = None,
    ) -> SigningKeys | None:
        """Return the keys of a file or of the environment, ``None`` if there are none.

        ``PARLEY_SIGNING_KEYS`` has the keys as JSON, ``PARLEY_SIGNING_KEYS_FILE`` names a file.
        Raises ``SigningKeysInvalid`` for keys that cannot be used, and for a file that others may
        read.
        """
        if isinstance(given, SigningKeys):
            return given
        values = os.environ if environment is None else environment
        text, path = values.get(KEYS_VARIABLE, ""), values.get(FILE_VARIABLE, "")
        if given:
            return cls.from_file(given)
        if text and path:
            raise SigningKeysInvalid(
                f"{KEYS_VARIABLE} and {FILE_VARIABLE} are both set: set only one of them"
            )
        if path:
            return cls.from_file(path)
        return cls.parse(text, what=KEYS_VARIABLE) if text else None

    @classmethod
    def parse(
        cls, text: str | bytes, *, what: str = "the key set", clock: Callable[[], float] = time.time
    ) -> SigningKeys:
        """Return the keys of a JWK Set. Raises ``SigningKeysInvalid``."""
        return cls(read_key_set(text, what), clock=clock)

    @classmethod
    def from_file(cls, path: str | Path, *, clock: Callable[[], float] = time.time) -> SigningKeys:
        """Return the keys of a file, which is checked for changes. Raises
        ``SigningKeysInvalid``."""
        path = Path(path)
        stamp = stamp_of(path)
        keys = cls(_read_file(path), clock=clock)
        keys._path, keys._stamp = path, stamp
        keys._next_look = time.monotonic() + RELOAD_SECONDS
        return keys

    @property
    def signers(self) -> tuple[SigningKey, ...]:
        """The keys that sign now, at least one. The first is used where only one can sign."""
        self._look()
        return tuple(key for key in self._keys if key.state == CURRENT)

    @property
    def published(self) -> dict[str, list[dict[str, str]]]:
        """The public JWK Set: it verifies current, recent and upcoming signatures."""
        self._look()
        now = self._clock()
        keys = sorted(self._keys, key=lambda key: STATES.index(key.state))
        return {"keys": [key.public for key in keys if not key.is_over(now)]}

    @property
    def revision(self) -> int:
        """A number that changes with the keys: older signatures must be made again."""
        self._look()
        return self._revision

    def on_reload(self, note: Callable[[Reload], None]) -> Callable[[], None]:
        """Call ``note`` after each reload, on the thread that read the file. Return a function to
        stop.

        ``note`` must not fail.
        """
        self._noting = (*self._noting, note)

        def end() -> None:
            self._noting = tuple(each for each in self._noting if each is not note)

        return end

    async def reload(self) -> str:
        """Read the file if it has changed. Return what is new, for the log."""
        before, self._next_look = self._keys, 0.0
        await asyncio.to_thread(self._look)
        return "" if self._keys is before else f"signing keys {', '.join(self._signing_ids())}"

    def _look(self) -> None:
        """Read the file again if it has changed, at most once per ``RELOAD_SECONDS``."""
        if self._path is None or time.monotonic() < self._next_look:
            return
        if not self._lock.acquire(blocking=False):
            return  # another thread is checking
        try:
            self._next_look = time.monotonic() + RELOAD_SECONDS
            stamp = stamp_of(self._path)
            if stamp == self._stamp:
                return
            self._stamp = stamp
            keys = checked(_read_file(self._path))
            self._keys = keys
            self._revision += 1
            log.info("signing keys were read again: %s sign now", ", ".join(self._signing_ids()))
            self._note("")
        except ValueError as error:
            log.error(
                "the changed signing keys cannot be used, the old keys stay in use: %s", error
            )
            self._note(str(error))
        finally:
            self._lock.release()

    def _note(self, error: str) -> None:
        for note in self._noting:
            note(Reload(self._signing_ids(), error))

    def _signing_ids(self) -> tuple[str, ...]:
        return tuple(key.kid for key in self._keys if key.state == CURRENT)


def encode(data: bytes) -> str:
    """Return bytes in base64url without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _read_file(path: Path) -> tuple[SigningKey, ...]:
    try:
        data = read_private(path, limit=MAX_BYTES)
    except FileNotFoundError:
        raise SigningKeysInvalid(
            f"there is no key file {path}: make one with `parley keys generate {path}`"
        ) from None
    except OSError as error:
        raise SigningKeysInvalid(f"the key file {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise SigningKeysInvalid(str(error)) from None
    return read_key_set(data, f"the key file {path}")


def read_key_set(text: str | bytes, what: str) -> tuple[SigningKey, ...]:
    """Return the keys of a JWK Set with private keys, in its order. Raises ``SigningKeysInvalid``.

    No key is left out silently: one unusable key makes the whole set unusable.
    """
    beginning = text[:200] if isinstance(text, str) else text[:200].decode("latin-1")
    if "-----BEGIN" in beginning:
        raise SigningKeysInvalid(
            f"{what} is PEM, and signing keys are a JWK Set (RFC 7517): make one with "
            "`parley keys generate signing-keys.json`"
        )
    try:
        content = read_object(text, limit=MAX_BYTES, what=what)
    except AmbiguousJson as error:
        raise SigningKeysInvalid(str(error)) from None
    keys = content.get("keys", [content] if "kty" in content else None)
    if not isinstance(keys, list) or not keys or not all(isinstance(key, dict) for key in keys):
        raise SigningKeysInvalid(f'{what} is not a JWK Set: it has no list of "keys"')
    if len(keys) > MAX_KEYS:
        raise SigningKeysInvalid(f"{what} has {len(keys)} keys; at most {MAX_KEYS} are read")
    found = []
    for number, key in enumerate(keys, 1):
        try:
            found.append(read_key(key))
        except ValueError as error:
            raise SigningKeysInvalid(f"key {number} of {what} {error}") from None
    return checked(tuple(found), what)


def checked(keys: tuple[SigningKey, ...], what: str = "the key set") -> tuple[SigningKey, ...]:
    """Return keys with unique ids, at least one of which signs. Raises ``SigningKeysInvalid``."""
    ids = [key.kid for key in keys]
    if len(set(ids)) != len(ids):
        raise SigningKeysInvalid(
            f"{what} has two keys with the same kid: verifiers could use either"
        )
    if not any(key.state == CURRENT for key in keys):
        raise SigningKeysInvalid(f'{what} has no key whose "state" is "current": no key would sign')
    return keys


def read_key(jwk: Mapping[str, Any]) -> SigningKey:
    """Return the key of a private JWK. Raises ``ValueError`` with the reason."""
    kty = jwk.get("kty")
    if not isinstance(kty, str) or kty not in _PUBLIC:
        if kty == "oct":
            raise ValueError("is a shared secret (oct): its signatures prove nothing to others")
        raise ValueError('has a "kty" that is none of EC, RSA, OKP')
    state = jwk.get("state", CURRENT)
    if state not in STATES:
        raise ValueError(f'has a "state" that is none of {", ".join(STATES)}')
    if jwk.get("use", "sig") != "sig":
        raise ValueError('is not for signatures: its "use" is another')
    public = _texts(jwk, _PUBLIC[kty], required=True)
    private = _texts(jwk, _PRIVATE[kty], required=False)
    alg = _algorithm(kty, public, jwk.get("alg"))
    if "d" not in private and state != PREVIOUS:
        raise ValueError(f"has no private half, and its state is {state}")
    key = _import({"kty": kty, **public}, private if "d" in private else {})
    kid = jwk.get("kid", "")
    if not isinstance(kid, str) or len(kid) > 256:
        raise ValueError('has a "kid" that is no text of at most 256 characters')
    return SigningKey(
        kid or key.thumbprint(),
        alg,
        key,
        public={"kty": kty, **public},
        state=state,
        created=_time(jwk, "created") or 0,
        until=_time(jwk, "until"),
    )


def _algorithm(kty: str, public: Mapping[str, str], alg: Any) -> str:
    curve = public.get("crv", "")
    found = _ALGORITHM_OF[kty]
    if curve != {"EC": "P-256", "OKP": "Ed25519"}.get(kty, ""):
        raise ValueError(f"is of the curve {curve[:20]!r}: P-256 and Ed25519 are signed with")
    if alg not in (None, found):
        raise ValueError(f'has an "alg" other than {found}, which is that of its kind here')
    if kty == "RSA":
        bits = int.from_bytes(decode(public["n"]), "big").bit_length()
        if not MIN_RSA_BITS <= bits <= MAX_RSA_BITS:
            raise ValueError(f"has {bits} bits: RSA has {MIN_RSA_BITS} to {MAX_RSA_BITS}")
    return found


def _import(public: dict[str, str], private: Mapping[str, str]) -> Any:
    """Return the key of a JWK whose two halves match."""
    import warnings

    from cryptography.exceptions import UnsupportedAlgorithm
    from joserfc.errors import JoseError
    from joserfc.jwk import import_key
    from joserfc.jws import JWSRegistry

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            half: Any = import_key(dict(public))
            half.get_op_key("verify")
            if not private:
                return half
            key: Any = import_key({**public, **private})
            model = JWSRegistry.algorithms[_ALGORITHM_OF[public["kty"]]]
            if model.verify(b"parley", model.sign(b"parley", key), half):
                return key
    except (ValueError, TypeError, KeyError, JoseError, UnsupportedAlgorithm):
        pass
    raise ValueError("is malformed, or its halves do not belong together")


def _deterministic(key: Any, data: bytes) -> bytes | None:
    """Return a deterministic ES256 signature (RFC 6979), ``None`` if it is not supported here."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
    from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
    from cryptography.hazmat.primitives.hashes import SHA256

    try:
        algorithm = ECDSA(SHA256(), deterministic_signing=True)
    except (UnsupportedAlgorithm, TypeError):
        return None
    r, s = decode_dss_signature(key.get_op_key("sign").sign(data, algorithm))
    return r.to_bytes(32, "big") + s.to_bytes(32, "big")


def _texts(jwk: Mapping[str, Any], names: tuple[str, ...], *, required: bool) -> dict[str, str]:
    found = {}
    for name in names:
        value = jwk.get(name)
        if value is None and not required:
            continue
        if not isinstance(value, str) or not value:
            raise ValueError(f'has no text for "{name}"')
        found[name] = value
    return found


def _time(jwk: Mapping[str, Any], name: str) -> float | None:
    value = jwk.get(name)
    if value is None:
        return None
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 <= value < _YEAR_10000:
        raise ValueError(f'has a "{name}" that is not a number of seconds since 1970')
    return float(value)


def decode(text: str) -> bytes:
    """Return the bytes of base64url without padding. Raises ``ValueError`` for other spellings."""
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
    except ValueError:
        raise ValueError("is not base64url") from None
    if encode(data) != text:
        raise ValueError("is not base64url without padding")
    return data


# -- rotation ---------------------------------------------------------------------------------

DEFAULT_OVERLAP = 24 * 3600.0
"""The time in seconds for which a key is published after its last signature."""

RSA_BITS = 3072

_PRIVATE_MEMBERS = frozenset(("d", "p", "q", "dp", "dq", "qi", "oth", "k"))

Document = dict[str, Any]


class Rotation(msgspec.Struct, frozen=True):
    """A rotated key set, and the ids of the changed keys.

    ``unpublished`` keys sign now but were never published before: verifiers with a cached key set
    have to fetch it again.
    """

    document: Document
    signs: tuple[str, ...]
    ended: tuple[str, ...]
    removed: tuple[str, ...]
    unpublished: tuple[str, ...]
    published_at: float
    """The creation time of the youngest signing key, which is the earliest time of publication."""


def new_jwk(alg: str, state: str, now: float) -> dict[str, Any]:
    """Return a new private JWK, whose id is its thumbprint (RFC 7638). Raises ``ValueError``."""
    from joserfc.jwk import ECKey, OKPKey, RSAKey

    key: Any
    match alg:
        case "ES256":
            key = ECKey.generate_key("P-256")
        case "EdDSA":
            key = OKPKey.generate_key("Ed25519")
        case "RS256":
            key = RSAKey.generate_key(RSA_BITS)
        case _:
            raise ValueError(f"signing keys are for {', '.join(ALGORITHMS)}, not for {alg!r:.40}")
    members = key.as_dict(private=True)
    own = {"kid": key.thumbprint(), "alg": alg, "use": "sig"}
    return {**own, "state": state, "created": int(now), **members}


def new_key_set(algorithms: Iterable[str], now: float) -> Document:
    """Return a key set with a current and a next key for each algorithm.

    The first algorithm is used where only one key can sign. Raises ``ValueError``.
    """
    given = tuple(dict.fromkeys(algorithms)) or ALGORITHMS[:1]
    states = (CURRENT, NEXT)
    return {"keys": [new_jwk(alg, state, now) for state in states for alg in given]}


def rotated(text: str | bytes, now: float, overlap: float, what: str = "the key set") -> Rotation:
    """Return a key set in which the next keys sign and the current keys become previous.

    A previous key is published for ``overlap`` seconds, and then removed by the next rotation.
    Raises ``SigningKeysInvalid``.
    """
    if overlap < 0:
        raise SigningKeysInvalid("the overlap of a rotation must not be negative")
    keys = read_key_set(text, what)
    document = read_object(text, limit=len(text) * 4 + 1, what=what)
    jwks = document.get("keys", [document])
    given = list(zip(keys, jwks, strict=True))
    current = [each for each in given if each[0].state == CURRENT]
    waiting = [each for each in given if each[0].state == NEXT]
    signing, unpublished = [], []
    for old, _ in current:
        taken = next((each for each in waiting if each[0].alg == old.alg), None)
        if taken is None:
            made = new_jwk(old.alg, CURRENT, now)
            signing.append(made)
            unpublished.append(made["kid"])
        else:
            waiting.remove(taken)
            signing.append({**taken[1], "kid": taken[0].kid, "state": CURRENT})
    upcoming = [new_jwk(old.alg, NEXT, now) for old, _ in current]
    ended = [_ended(key, jwk, now + overlap) for key, jwk in current]
    previous = [each for each in given if each[0].state == PREVIOUS]
    kept = [{**jwk, "kid": key.kid} for key, jwk in previous if not key.is_over(now)]
    rest = [{**jwk, "kid": key.kid} for key, jwk in waiting]
    found = [*signing, *upcoming, *rest, *ended, *kept]
    if len(found) > MAX_KEYS:
        raise SigningKeysInvalid(
            f"{what} would have {len(found)} keys, and at most {MAX_KEYS} are read: it was rotated "
            "often within one overlap; wait until previous keys expire"
        )
    return Rotation(
        {"keys": found},
        signs=tuple(each["kid"] for each in signing),
        ended=tuple(key.kid for key, _ in current),
        removed=tuple(key.kid for key, _ in previous if key.is_over(now)),
        unpublished=tuple(unpublished),
        published_at=max(_created(each) for each in signing),
    )


def write_key_set(document: Mapping[str, Any]) -> bytes:
    """Return a key set as text for a file. Raises ``SigningKeysInvalid``."""
    text = json.dumps(document, indent=2).encode() + b"\n"
    read_key_set(text, "the new key set")
    return text


def _ended(key: SigningKey, jwk: Mapping[str, Any], until: float) -> dict[str, Any]:
    """Return a retired key: only its public half is kept."""
    public = {name: value for name, value in jwk.items() if name not in _PRIVATE_MEMBERS}
    return {**public, "kid": key.kid, "state": PREVIOUS, "until": int(until)}


def _created(jwk: Mapping[str, Any]) -> float:
    return read_key(jwk).created
