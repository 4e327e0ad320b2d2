"""The base of every A2A value, and the JSON of Parley's own log.

A value is frozen, keyword-only, and camelCase on the wire. The JSON is canonical ProtoJSON.
``wire.json`` reads the JSON of peers.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Annotated, Any, Self, TypeVar

import msgspec

from parley.model.errors import an

NonEmpty = Annotated[str, msgspec.Meta(min_length=1)]
"""A required string that must not be empty: an id, an address.

Other required fields may be empty; ProtoJSON writers then leave them out.
"""

Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
"""An integer in the range of protobuf's int32."""


class A2AStruct(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    rename="camel",
):
    """A value of the A2A data model.

    Values are immutable; ``msgspec.structs.replace`` makes a changed copy. Two values are equal
    when their fields are; a value is hashable if it has no JSON object (metadata, data). Fields
    without a default are REQUIRED by the specification and are always written; a field that equals
    its default is left out of the JSON, as ProtoJSON requires (specification §5.7). Only exact
    field names are accepted here; ``wire.json`` reads unknown names and other spellings.
    """


class InvalidField(ValueError):
    """A value cannot be made because a field is wrong. ``field`` is its name in Python."""

    def __init__(self, field: str, description: str) -> None:
        self.field = field
        self.description = description
        super().__init__(f"{field}: {description}")


def freeze(value: A2AStruct, *fields: str) -> None:
    """Convert lists in the ``fields`` of a new value to tuples.

    Raises ``TypeError`` for a single string, which would become a tuple of letters.
    """
    for field in fields:
        held = getattr(value, field)
        if type(held) is tuple:
            continue
        if isinstance(held, str):
            raise TypeError(f"{field} is a list of strings: write {field}=[{held[:40]!r}]")
        msgspec.structs.force_setattr(value, field, tuple(held))


_RFC_3339 = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt](?:[01][0-9]|2[0-3]):[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?"
    r"(?:[Zz]|[+-][0-9]{2}:[0-9]{2})"
)


class Timestamp(datetime):
    """A time in UTC, in whole milliseconds (specification §5.6.1)."""

    _text: str | None = None

    @classmethod
    def of(cls, moment: datetime) -> Self:
        """Return ``moment`` in UTC and whole milliseconds.

        Raises ``ValueError`` for a time without a time zone, which would be ambiguous.
        """
        if moment.tzinfo is None:
            raise ValueError(
                "a timestamp needs a time zone; use datetime.now(timezone.utc), not datetime.now()"
            )
        try:
            utc = moment.astimezone(UTC)
        except OverflowError:
            raise ValueError(f"{moment.isoformat()} has no counterpart in UTC") from None
        return cls(
            utc.year,
            utc.month,
            utc.day,
            utc.hour,
            utc.minute,
            utc.second,
            utc.microsecond // 1000 * 1000,
            UTC,
        )

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Self:
        """Return the current time in UTC; ``tz`` is ignored."""
        return cls.of(datetime.now(tz or UTC))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read an RFC 3339 timestamp of any offset and precision, as ProtoJSON allows.

        ``T`` and ``Z`` may be lower case.

        Raises ``ValueError`` when ``text`` is not a timestamp.
        """
        moment = None
        if _RFC_3339.fullmatch(text):
            try:
                moment = cls.fromisoformat(text.upper())
            except ValueError:  # such as the 30th of February, or the 61st minute
                moment = None
        if moment is None:
            raise ValueError(f"{text[:40]!r} is not a timestamp such as 2026-01-31T12:00:00.000Z")
        return moment if moment.tzinfo is UTC and not moment.microsecond % 1000 else cls.of(moment)

    @staticmethod
    def from_milliseconds(milliseconds: int) -> Timestamp:
        """Return the time ``milliseconds`` after 1970-01-01T00:00:00Z."""
        global _second
        seconds, rest = divmod(milliseconds, 1000)
        moment = _EPOCH + timedelta(0, seconds, rest * 1000)
        known = _second  # a local copy: other threads may replace it
        if known[0] != seconds:
            known = _second = (seconds, moment.isoformat()[:19])
        moment._text = f"{known[1]}.{rest:03d}Z"
        return moment

    @property
    def milliseconds(self) -> int:
        """Whole milliseconds since 1970-01-01T00:00:00Z."""
        since = self - _EPOCH
        return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000

    def __str__(self) -> str:
        # Cached, as a time is often written twice: in an event and in a reply.
        if self._text is None:
            moment = self if self.tzinfo is UTC else self.of(self)
            self._text = f"{moment.isoformat(timespec='milliseconds')[:23]}Z"
        return self._text


_EPOCH = Timestamp(1970, 1, 1, tzinfo=UTC)
_second = (0, "1970-01-01T00:00:00")  # the second that was written last, and its text


T = TypeVar("T")


def to_wire(value: Any) -> Any:
    """Return the JSON form of a value of a type that msgspec does not support."""
    if isinstance(value, Timestamp):
        return value._text or str(value)
    raise TypeError(f"{an(type(value).__name__)} cannot be written as JSON")


def from_wire(kind: type, value: Any) -> Any:
    """Return the value of type ``kind`` whose JSON form is ``value``."""
    if kind is Timestamp:
        if not isinstance(value, str):
            raise ValueError("expected a timestamp such as 2026-01-31T12:00:00.000Z")
        return Timestamp.parse(value)
    raise TypeError(f"{an(kind.__name__)} cannot be read from JSON")


encode = msgspec.json.Encoder(enc_hook=to_wire).encode
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}


def decode(data: bytes | memoryview | msgspec.Raw, kind: type[T]) -> T:
    """Read a value that ``encode`` wrote. Raises ``msgspec.DecodeError`` for anything else."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind, dec_hook=from_wire)
    return decoder.decode(data)  # type: ignore[no-any-return]


def valid_text(value: Any) -> Any:
    """Return a value with valid Unicode text: half of a surrogate pair becomes U+FFFD."""
    if isinstance(value, str):
        if value.isascii():
            return value
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, msgspec.Struct):
        fields = msgspec.structs.asdict(value)  # includes UNSET data, which getattr hides
        return msgspec.structs.replace(
            value, **{name: valid_text(item) for name, item in fields.items()}
        )
    if isinstance(value, dict):
        return {valid_text(key): valid_text(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [valid_text(item) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return value
