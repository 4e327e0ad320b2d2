"""Limits as values, and the language in which they are declared.

    RATE      60/minute, 5/10 seconds         requests in any span of that length
    STREAMS   20 streams                      streams that are open at once, in one process
    BUDGET    1000 messages/day, 50 MB output/day, 2 hours running/day     of a day in UTC
    SIZE      message 256 KB, message 20 parts, artifact 10 MB, task 50 MB, history 100 messages

A rate, a number of streams or a budget may be followed by ``per`` (the keys by which it counts),
``on`` (operations), ``for skill`` and ``except`` (exempt callers), in this order:

    60/minute per caller on SendMessage, GetTask except caller:ada, scope:admin
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import ip_network
from typing import Any, Literal

import msgspec

from parley.model.operations import OPERATIONS

Key = Literal["caller", "tenant", "operation", "skill", "address"]
KEYS: tuple[Key, ...] = ("caller", "tenant", "operation", "skill", "address")
"""The keys by which a limit can count."""

Budgeted = Literal["messages", "tasks", "output", "running"]
Sized = Literal["message", "parts", "artifact", "task", "history"]

DAY_MS = 86_400_000

EXAMPLES = (
    "'60/minute per caller', '5/second per address on SendMessage', '20 streams per caller', "
    "'1000 messages/day per tenant', '50 MB output/day per caller', 'artifact 10 MB' or "
    "'history 100 messages'"
)

_UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400}
_BYTES = {"b": 1, "byte": 1, "bytes": 1, "kb": 1000, "mb": 1000**2, "gb": 1000**3}
_BYTES |= {"kib": 1024, "mib": 1024**2, "gib": 1024**3}
_LARGEST = 2**53

_NUMBER = r"(?P<amount>\d[\d_]*)"
_UNIT = r"(?P<unit>second|minute|hour|day)s?"
_SIZE = r"(?P<size>bytes?|[kmg]i?b|b)\b"
_RATE = re.compile(rf"{_NUMBER}\s*(?:/|\s+per\s+)\s*(?:(?P<many>\d+)\s*)?{_UNIT}\b", re.I)
_STREAMS = re.compile(rf"{_NUMBER}\s+streams?\b", re.I)
_COUNTED = re.compile(rf"{_NUMBER}\s+(?P<what>messages|tasks)\s*/\s*day\b", re.I)
_OUTPUT = re.compile(rf"{_NUMBER}\s*{_SIZE}\s+output\s*/\s*day\b", re.I)
_RUNNING = re.compile(rf"{_NUMBER}\s*{_UNIT}\s+running\s*/\s*day\b", re.I)
_BYTES_OF = re.compile(rf"(?P<what>message|artifact|task)\s+{_NUMBER}\s*{_SIZE}", re.I)
_PARTS = re.compile(rf"message\s+{_NUMBER}\s+parts?", re.I)
_HISTORY = re.compile(rf"history\s+{_NUMBER}\s+messages?", re.I)
_CLAUSES = re.compile(
    r"\s*(?:\bper\s+(?P<per>.+?))?\s*(?:\bon\s+(?P<on>.+?))?"
    r"\s*(?:\bfor\s+skills?\s+(?P<skill>.+?))?\s*(?:\bexcept\s+(?P<exempt>.+?))?\s*",
    re.I,
)
_EXEMPT = ("caller", "client", "scope", "role", "address")
_OPERATIONS = {each.name.lower(): each.name for each in OPERATIONS}


class Exemption(msgspec.Struct, frozen=True):
    """An exemption from a limit: a caller's id, a scope, a role, or a network."""

    kind: str
    value: str


class Applies(msgspec.Struct, frozen=True, kw_only=True):
    """The scope of a limit: keys, operations, skills, and exempt callers.

    Without operations it applies to all operations, without skills to all skills.
    """

    per: tuple[Key, ...] = ()
    operations: tuple[str, ...] = ()
    skills: tuple[str, ...] = ()
    exempt: tuple[Exemption, ...] = ()

    @property
    def needs_skill(self) -> bool:
        """True if a request must be routed to a skill before it can be counted."""
        return bool(self.skills) or "skill" in self.per


class _Counted(msgspec.Struct, frozen=True, kw_only=True):
    """A limit with a counter, with its text and the name of its policy."""

    text: str
    name: str
    amount: int
    applies: Applies = Applies()


class Rate(_Counted, frozen=True, kw_only=True):
    """A number of requests in any span of ``period_ms``. A budget counts per day in UTC.

    ``counts`` is the unit: requests, or the messages or tasks of a budget.
    """

    period_ms: int
    is_daily: bool = False
    counts: Literal["requests", "messages", "tasks"] = "requests"


class StreamLimit(_Counted, frozen=True, kw_only=True):
    """A number of simultaneous streams in each process."""


class Budget(_Counted, frozen=True, kw_only=True):
    """An amount of output (bytes) or of running time (ms) per day in UTC."""

    what: Literal["output", "running"]


class SizeLimit(msgspec.Struct, frozen=True, kw_only=True):
    """The maximum size of a message, artifact or task (bytes), or number of parts or messages."""

    text: str
    amount: int
    what: Sized
    skills: tuple[str, ...] = ()


Limit = Rate | StreamLimit | Budget | SizeLimit


def parse_limits(
    given: str | Iterable[str], *, skill: str = "", operations: Iterable[str] = ()
) -> tuple[Limit, ...]:
    """Return limits from their texts.

    ``skill`` is the skill that declares the limits; they apply only to it. ``operations`` are
    further names for ``on``, in addition to the specification's. Raises ``ValueError`` for a text
    that is not a limit, with the right form, and ``TypeError`` for an element that is not text.
    """
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise TypeError(
            f"limits is a list of texts, such as ['60/minute per caller'], not {given!r}"
        )
    known = _OPERATIONS | {name.lower(): name for name in operations}
    found: list[Limit] = []
    names: dict[str, int] = {}
    for text in given:
        if not isinstance(text, str):
            raise TypeError(f"a limit is a text such as '60/minute per caller', not {text!r}")
        limit = _parse(" ".join(text.split()), skill, known)
        if not isinstance(limit, SizeLimit):
            count = names[limit.name] = names.get(limit.name, 0) + 1
            if count > 1:
                limit = msgspec.structs.replace(limit, name=f"{limit.name}-{count}")
        found.append(limit)
    return tuple(found)


def _parse(text: str, skill: str, known: dict[str, str]) -> Limit:
    for pattern, what in ((_PARTS, "parts"), (_HISTORY, "history"), (_BYTES_OF, "")):
        if match := pattern.match(text):
            if match.end() != len(text):
                rest = text[match.end() :].strip()
                raise _wrong(text, f"a size applies to every caller, so leave {rest[:60]!r} out")
            return _size(text, match, what, skill)
    for pattern in (_STREAMS, _COUNTED, _OUTPUT, _RUNNING, _RATE):
        if match := pattern.match(text):
            applies = _applies(text, text[match.end() :], skill, known)
            return _counted(text, pattern, match, applies)
    raise _wrong(text, "it begins with none of the forms")


def _size(text: str, match: re.Match[str], what: str, skill: str) -> SizeLimit:
    kind = what or match["what"].lower()
    unit = 1 if what else _BYTES[match["size"].lower()]
    skills = (skill,) if skill else ()
    return SizeLimit(text=text, amount=_amount(text, match, unit), what=kind, skills=skills)  # type: ignore[arg-type]


def _counted(
    text: str, pattern: re.Pattern[str], match: re.Match[str], applies: Applies
) -> Rate | StreamLimit | Budget:
    by = "-".join((*applies.per, *applies.skills)) or "all"
    by = re.sub(r"[^A-Za-z0-9_.-]", "_", by)
    if pattern is _STREAMS:
        if applies.needs_skill:
            raise _wrong(text, "streams are not counted by skill: give the limit to the agent")
        if applies.operations:
            raise _wrong(text, "streams are counted together, so leave 'on' out")
        return StreamLimit(
            text=text, name=f"streams-{by}", amount=_amount(text, match), applies=applies
        )
    if pattern is _OUTPUT or pattern is _RUNNING:
        others = [key for key in applies.per if key not in ("caller", "tenant")]
        if others or applies.operations or applies.skills or not applies.per:
            raise _wrong(
                text, "such a budget belongs to an agent, per caller, per tenant, or per both"
            )
        is_output = pattern is _OUTPUT
        unit = _BYTES[match["size"].lower()] if is_output else 1000 * _UNITS[match["unit"].lower()]
        what: Literal["output", "running"] = "output" if is_output else "running"
        amount = _amount(text, match, unit)
        return Budget(text=text, name=f"{what}-{by}", amount=amount, what=what, applies=applies)
    counts: Any = "requests"
    if pattern is _COUNTED:
        if applies.operations:
            raise _wrong(text, "messages and tasks only come with SendMessage, so leave 'on' out")
        counts, period = match["what"].lower(), DAY_MS
        name = f"{counts}-{by}"
    else:
        if applies.needs_skill and applies.operations:
            raise _wrong(text, "only messages have a skill, so leave 'on' out")
        many, span = int(match["many"] or 1), match["unit"].lower()
        period = many * _UNITS[span] * 1000
        if not 0 < period <= 31 * DAY_MS:
            raise _wrong(text, "the span is between a second and 31 days")
        name = f"{by}-{span if many == 1 else f'{many}{span}'}"
    return Rate(
        text=text,
        name=name,
        amount=_amount(text, match),
        period_ms=period,
        is_daily=pattern is _COUNTED,
        counts=counts,
        applies=applies,
    )


def _applies(text: str, rest: str, skill: str, known: dict[str, str]) -> Applies:
    match = _CLAUSES.fullmatch(rest)
    if match is None:
        raise _wrong(
            text, f"{rest.strip()[:60]!r} is no 'per', 'on', 'for skill' or 'except', in this order"
        )
    per = [key.lower() for key in _list(match["per"], also_and=True)]
    for key in per:
        if key not in KEYS:
            raise _wrong(text, f"'per' has {', '.join(KEYS)}, and not {key[:60]!r}")
    operations = []
    for name in _list(match["on"]):
        if name.lower() not in known:
            raise _wrong(
                text, f"there is no operation {name[:60]!r}; there are {', '.join(known.values())}"
            )
        operations.append(known[name.lower()])
    skills = _list(match["skill"])
    if skill and skills:
        raise _wrong(text, f"it is declared for the skill {skill!r} already: leave 'for skill' out")
    return Applies(
        per=tuple(dict.fromkeys(per)),  # type: ignore[arg-type]
        operations=tuple(dict.fromkeys(operations)),
        skills=(skill,) if skill else tuple(dict.fromkeys(skills)),
        exempt=tuple([_exemption(text, each) for each in _list(match["exempt"])]),
    )


def _exemption(text: str, given: str) -> Exemption:
    kind, _, value = given.partition(":")
    kind, value = kind.lower(), value.strip()
    if kind not in _EXEMPT or not value or " " in value:
        raise _wrong(
            text,
            "'except' has caller:ID, client:ID, scope:NAME, role:NAME or address:NETWORK, not "
            f"{given!r}",
        )
    if kind == "address":
        try:
            value = str(ip_network(value, strict=False))
        except ValueError:
            raise _wrong(text, f"{value[:60]!r} is no address or network") from None
    return Exemption(kind, value)


def _list(given: str | None, *, also_and: bool = False) -> list[str]:
    if given is None:
        return []
    parts = re.split(r"\s*,\s*|\s+and\s+" if also_and else r"\s*,\s*", given.strip(), flags=re.I)
    return [part for part in parts if part]


def _amount(text: str, match: re.Match[str], unit: int = 1) -> int:
    amount = int(match["amount"].replace("_", "")[:20]) * unit
    if not 0 < amount <= _LARGEST:
        raise _wrong(text, "its number is 1 or more, and below 2^53")
    return amount


def _wrong(text: str, why: str) -> ValueError:
    return ValueError(
        f"the limit {text[:200]!r} cannot be read: {why}. Limits look like {EXAMPLES}"
    )
