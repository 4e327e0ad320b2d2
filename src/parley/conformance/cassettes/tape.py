"""The tape: exchanges in a JSON file that people review, and which of them answers a request."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from parley.client.errors import ClientError
from parley.conformance.cassettes.hiding import HIDDEN, Hiding
from parley.security.networks import is_loopback

_CHANGING = frozenset(("messageId", "message_id"))
_CONTEXTS = frozenset(("contextId", "context_id"))
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)?")
_ABSENT = "(nothing)"
_SHOWN = 80


class Difference(NamedTuple):
    """One place where a request is not that of the tape."""

    where: str
    taped: Any
    asked: Any

    def __str__(self) -> str:
        return f"{self.where}: {_shown(self.taped)} on the tape, {_shown(self.asked)} asked"


class Ids:
    """The ids that clients made: those of the tape, and what they are this time.

    ``served`` are the texts that answers of the tape had before: an id among them is the agent's,
    and has to be the same.
    """

    def __init__(self) -> None:
        self.now: dict[str, str] = {}
        self.served: set[str] = set()

    def saw(self, value: Any) -> None:
        """Remember the texts of an answer."""
        self.served.update(_texts(value))

    def today(self, value: Any) -> Any:
        """Return a value of the tape with the ids of this time."""
        if isinstance(value, str):
            known = self.now.get(value)
            if known is not None:
                return known
            for taped, now in self.now.items():
                if len(taped) >= 8 and taped in value:
                    value = value.replace(taped, now)
            return value
        if isinstance(value, dict):
            return {name: self.today(each) for name, each in value.items()}
        return [self.today(each) for each in value] if isinstance(value, list) else value


class RequestMatcher:
    """Compares requests with those of a tape. ``ignored`` are names of members that may differ."""

    def __init__(self, ignored: frozenset[str], ids: Ids) -> None:
        self._ignored = ignored
        self._ids = ids

    def differences(
        self, taped: Mapping[str, Any], asked: Mapping[str, Any]
    ) -> tuple[list[Difference], dict[str, str]]:
        """Return what differs, and the ids of the tape that are others this time."""
        found: list[Difference] = []
        ids: dict[str, str] = {}
        if taped["method"] != asked["method"]:
            found.append(Difference("method", taped["method"], asked["method"]))
        found += self._address(taped["url"], asked["url"])
        for name in ("a2a-version", "a2a-extensions"):
            was, now = (each["headers"].get(name) for each in (taped, asked))
            if was != now and name not in self._ignored:
                found.append(Difference(name, was or _ABSENT, now or _ABSENT))
        for kind in ("json", "text", "base64"):
            if kind in taped or kind in asked:
                was, now = taped.get(kind, _ABSENT), asked.get(kind, _ABSENT)
                found += self._compare(was, now, "", ids)
        return found, ids

    def _address(self, taped: str, asked: str) -> Iterator[Difference]:
        was, now = urlsplit(self._ids.today(taped)), urlsplit(asked)
        here = is_loopback(was.hostname or "") and is_loopback(now.hostname or "")
        if was.netloc != now.netloc and not here:
            yield Difference("host", was.netloc, now.netloc)
        if was.path != now.path:
            yield Difference("path", was.path, now.path)
        before, after = (
            {
                name: value
                for name, value in parse_qsl(each.query, keep_blank_values=True)
                if name not in self._ignored
            }
            for each in (was, now)
        )
        yield from self._compare(before, after, "query", {})

    def _compare(self, was: Any, now: Any, where: str, ids: dict[str, str]) -> Iterator[Difference]:
        if isinstance(was, dict) and isinstance(now, dict):
            is_call = not where and "jsonrpc" in was
            for name in [*was, *(name for name in now if name not in was)]:
                if name in self._ignored or (is_call and name == "id"):
                    continue
                before, after = was.get(name, _ABSENT), now.get(name, _ABSENT)
                if self._changes(name, before, after):
                    ids[before] = after
                    continue
                yield from self._compare(before, after, f"{where}.{name}" if where else name, ids)
        elif isinstance(was, list) and isinstance(now, list):
            if len(was) != len(now):
                yield Difference(where, f"{len(was)} items", f"{len(now)} items")
            for index, (before, after) in enumerate(zip(was, now, strict=False)):
                yield from self._compare(before, after, f"{where}[{index}]", ids)
        elif not self._equal(was, now, ids):
            yield Difference(where or "body", was, now)

    def _changes(self, name: str, was: Any, now: Any) -> bool:
        if not (isinstance(was, str) and isinstance(now, str)) or _ABSENT in (was, now):
            return False
        if name in _CHANGING:
            return True
        return name in _CONTEXTS and was != now and was not in self._ids.served

    def _equal(self, was: Any, now: Any, ids: Mapping[str, str]) -> bool:
        if was == now and type(was) is type(now):
            return True
        if not (isinstance(was, str) and isinstance(now, str)):
            return bool(was == now and not isinstance(was, bool) and not isinstance(now, bool))
        if self._ids.today(was) == now or ids.get(was) == now:
            return True
        if HIDDEN in was:
            pattern = ".*".join(map(re.escape, was.split(HIDDEN)))
            return re.fullmatch(pattern, now, re.DOTALL) is not None
        return bool(_TIME.fullmatch(was) and _TIME.fullmatch(now))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)


def _shown(value: Any) -> str:
    text = value if value == _ABSENT else repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


FORMAT = 1
MAX_BYTES = 256 * 1024 * 1024
_SAFE_METHODS = frozenset(
    {
        "GetTask",
        "ListTasks",
        "GetExtendedAgentCard",
        "tasks/get",
        "tasks/list",
        "agent/getAuthenticatedExtendedCard",
    }
)


class NotOnTape(ClientError):
    """A request that the tape has no answer for. Nothing was sent."""


class TapeUnreadable(ClientError):
    """The file is no cassette that this version reads."""


class Tape:
    """The exchanges of one file.

    Each is replayed once, in any order; a request that only reads is answered again with the last
    exchange that fits it.
    """

    def __init__(self, path: Path, *, ignored: frozenset[str], hiding: Hiding) -> None:
        self.path = path
        self.hiding = hiding
        self.ids = Ids()
        self.exchanges: list[dict[str, Any]] = []
        self._matcher = RequestMatcher(ignored, self.ids)
        self._used: set[int] = set()

    @property
    def unused(self) -> list[str]:
        """What of the tape was not asked for yet: a line each."""
        return [
            f"{number}: {name_of(each['request'])}"
            for number, each in enumerate(self.exchanges, 1)
            if number - 1 not in self._used
        ]

    def load(self) -> None:
        """Read the file. Raises ``TapeUnreadable``, and ``FileNotFoundError``."""
        try:
            if self.path.stat().st_size > MAX_BYTES:
                raise TapeUnreadable(f"{self.path} is larger than {MAX_BYTES:,} bytes")
            read = json.loads(self.path.read_text("utf-8"))
            known = read["cassette"]
            self.exchanges = [_checked(each) for each in read["exchanges"]]
        except (ValueError, KeyError, TypeError) as error:
            raise TapeUnreadable(
                f"{self.path} is no cassette: {error}; record it again, with mode='record'"
            ) from error
        if known != FORMAT:
            raise TapeUnreadable(
                f"{self.path} has format {known!r}, this version reads {FORMAT}: record it again, "
                "with mode='record'"
            )

    def save(self) -> None:
        """Write the file, at once or not at all."""
        finished = [each for each in self.exchanges if "answer" in each]
        document = {"cassette": FORMAT, "exchanges": self.hiding.json(finished)}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        beside.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", "utf-8")
        beside.replace(self.path)

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a request, with the ids of this time. Raises ``NotOnTape``."""
        again, nearest = None, None
        for index, each in enumerate(self.exchanges):
            found, ids = self._matcher.differences(each["request"], asked)
            if not found and index not in self._used:
                self._used.add(index)
                return self._take(each, ids, asked)
            if not found:
                again = (each, ids)
            elif index not in self._used and (nearest is None or len(found) < len(nearest[1])):
                nearest = (index, found)
        if again is not None and _is_safe(asked):
            return self._take(*again, asked)
        raise NotOnTape(self._complaint(asked, nearest, used_up=again is not None))

    def _take(
        self, exchange: dict[str, Any], ids: dict[str, str], asked: dict[str, Any]
    ) -> dict[str, Any]:
        self.ids.now.update(ids)
        answer = exchange["answer"]
        self.ids.saw([answer.get("json"), [f.get("data") for f in answer.get("frames", ())]])
        answer = dict(self.ids.today(answer))
        call = asked.get("json")
        if isinstance(call, dict) and "jsonrpc" in call:
            for body in [answer.get("json"), *(f.get("data") for f in answer.get("frames", ()))]:
                if isinstance(body, dict) and "jsonrpc" in body and body.get("id") is not None:
                    body["id"] = call.get("id")
        return answer

    def _complaint(
        self, asked: dict[str, Any], nearest: tuple[int, list[Any]] | None, *, used_up: bool
    ) -> str:
        what = f"{name_of(asked)} is not on the tape {self.path}"
        how = "record again with mode='record' or PARLEY_CASSETTES=record"
        if used_up:
            return f"{what} once more: it was recorded less often than it is asked; {how}"
        if nearest is None:
            has = "it has no exchange" if not self.exchanges else "all of it was replayed"
            return f"{what}: {has}; {how}"
        index, found = nearest
        lines = "".join(f"\n  {each}" for each in found[:8])
        more = f"\n  and {len(found) - 8} more" if len(found) > 8 else ""
        near = name_of(self.exchanges[index]["request"])
        return f"{what}. The nearest is exchange {index + 1}, {near}:{lines}{more}\n{how}"


def name_of(request: dict[str, Any]) -> str:
    """Return how a request is called in messages."""
    call = request.get("json")
    method = call.get("method") if isinstance(call, dict) and "jsonrpc" in call else None
    named = f" ({method})" if isinstance(method, str) else ""
    return f"{request['method']} {request['url']}{named}"


def _is_safe(request: dict[str, Any]) -> bool:
    call = request.get("json")
    if isinstance(call, dict) and "jsonrpc" in call:
        return call.get("method") in _SAFE_METHODS
    return bool(request["method"] == "GET")


def _checked(exchange: Any) -> dict[str, Any]:
    request, answer = exchange["request"], exchange["answer"]
    for name in ("method", "url", "headers"):
        request[name]
    if not isinstance(answer["status"], int):
        raise TypeError(f"the status {answer['status']!r} is no number")
    return dict(exchange)
