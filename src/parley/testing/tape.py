"""The tape: exchanges in a JSON file for people to review, and the match of requests with
exchanges.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from parley.client.errors import ClientError
from parley.conformance.faults.cards import METHODS
from parley.security.networks import is_loopback
from parley.testing.redaction import HIDDEN, TapeRedactor

FORMAT = 1
MAX_BYTES = 256 * 1024 * 1024
_SHOWN, _LINES = 80, 8
_ABSENT = object()
_HOW_TO_RECORD = "record again with mode='record' or PARLEY_CASSETTES=record"
_MESSAGE_IDS = ("messageId", "message_id")
_CONTEXT_IDS = ("contextId", "context_id")
_COMPARED_HEADERS = ("a2a-version", "a2a-extensions")
_MIN_ID_LENGTH = 8
"""The shortest id that is replaced inside texts."""


class NotOnTape(ClientError):
    """A request that has no response on the tape. Nothing was sent."""


class TapeUnreadable(ClientError):
    """A file that is no cassette of this version's format."""


# -- allowed differences -----------------------------------------------------------------------

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)?")


def _are_times(was: str, now: str) -> bool:
    return bool(_TIME.fullmatch(was) and _TIME.fullmatch(now))


def _was_hidden(was: str, now: str) -> bool:
    pattern = ".*".join(map(re.escape, was.split(HIDDEN)))
    return HIDDEN in was and re.fullmatch(pattern, now, re.DOTALL) is not None


_MAY_DIFFER: tuple[Callable[[str, str], bool], ...] = (_are_times, _was_hidden)
"""The texts that may differ, besides ids from the client."""

Leaves = dict[str, Any]
"""The values of a request by their paths, such as ``body.params.message.parts[0].text``."""


def _leaves(request: Mapping[str, Any], ignored: frozenset[str]) -> Leaves:
    """Return the compared values of a request, without ignored members and parameters."""
    address = urlsplit(request["url"])
    body = next((request[kind] for kind in ("json", "text", "base64") if kind in request), None)
    if _method(request) is not None:
        body = {name: value for name, value in request["json"].items() if name != "id"}
    compared = {
        "method": request["method"],
        "host": "this machine" if is_loopback(address.hostname or "") else address.netloc,
        "path": address.path,
        "query": dict(parse_qsl(address.query, keep_blank_values=True)),
        "headers": {name: request["headers"].get(name, "") for name in _COMPARED_HEADERS},
        "body": body,
    }
    leaves: Leaves = {}
    for name, value in compared.items():
        if value:
            leaves.update(_flat(value, name, ignored))
    return leaves


def _flat(value: Any, where: str, ignored: frozenset[str]) -> Iterator[tuple[str, Any]]:
    if value and isinstance(value, dict):
        for name, each in value.items():
            if name not in ignored:
                yield from _flat(each, f"{where}.{name}", ignored)
    elif value and isinstance(value, list):
        for index, each in enumerate(value):
            yield from _flat(each, f"{where}[{index}]", ignored)
    else:
        yield where, value


def _with_current_ids(value: Any, ids: Mapping[str, str]) -> Any:
    """Return a value with recorded ids replaced by current ids: whole texts, and longer ids in
    texts.
    """
    if isinstance(value, dict):
        return {name: _with_current_ids(each, ids) for name, each in value.items()}
    if isinstance(value, list):
        return [_with_current_ids(each, ids) for each in value]
    if not isinstance(value, str):
        return value
    if value in ids:
        return ids[value]
    for was, now in ids.items():
        if len(was) >= _MIN_ID_LENGTH:
            value = value.replace(was, now)
    return value


def _fits(was: Any, now: Any, ids: Mapping[str, str]) -> bool:
    if not (isinstance(was, str) and isinstance(now, str)):
        return bool(was == now and isinstance(was, bool) == isinstance(now, bool))
    if was == now or _with_current_ids(was, ids) == now:
        return True
    return any(may_differ(was, now) for may_differ in _MAY_DIFFER)


# -- the tape ---------------------------------------------------------------------------------


class Tape:
    """The exchanges of one file.

    Each exchange is replayed once, in any order; a request that only reads is answered again with
    the last exchange that matches it. ``ignored`` are names of members that may differ.
    """

    def __init__(self, path: Path, *, ignored: frozenset[str], redactor: TapeRedactor) -> None:
        self.path = path
        self.redactor = redactor
        self.exchanges: list[dict[str, Any]] = []
        self._ignored = ignored
        self._leaves: list[Leaves] = []
        self._ids: dict[str, str] = {}
        self._served = ""
        self._used: set[int] = set()

    @property
    def unused(self) -> list[str]:
        """The exchanges that no request used yet, a line each."""
        return [
            f"{number}: {name_of(each['request'])}"
            for number, each in enumerate(self.exchanges, 1)
            if number - 1 not in self._used
        ]

    def load(self) -> None:
        """Read the file. Raises ``TapeUnreadable``, and ``FileNotFoundError``."""
        if self.path.stat().st_size > MAX_BYTES:
            raise TapeUnreadable(f"{self.path} is larger than {MAX_BYTES:,} bytes")
        try:
            read = json.loads(self.path.read_text("utf-8"))
            known, self.exchanges = read["cassette"], read["exchanges"]
            self._leaves = [_leaves(each["request"], self._ignored) for each in self.exchanges]
            for each in self.exchanges:
                if not isinstance(status := each["answer"]["status"], int):
                    raise TypeError(f"the status {status!r} is no number")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise TapeUnreadable(
                f"{self.path} is no cassette: {error}; record it again, with mode='record'"
            ) from error
        if known != FORMAT:
            raise TapeUnreadable(
                f"{self.path} has format {known!r}, this version reads {FORMAT}: record it again, "
                "with mode='record'"
            )

    def save(self) -> None:
        """Write the file atomically."""
        finished = [each for each in self.exchanges if "answer" in each]
        document = {"cassette": FORMAT, "exchanges": self.redactor.json(finished)}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        beside.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", "utf-8")
        beside.replace(self.path)

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Return the response to a request, with current ids. Raises ``NotOnTape``."""
        leaves = _leaves(asked, self._ignored)
        unused = [index for index in range(len(self._leaves)) if index not in self._used]
        nearest: tuple[int, list[str]] | None = None
        for index in unused:
            different, ids = self._compare(self._leaves[index], leaves)
            if not different:
                return self._take(index, ids, asked)
            if nearest is None or len(different) < len(nearest[1]):
                nearest = index, different
        what = f"{name_of(asked)} is not on the tape {self.path}"
        for index in sorted(self._used, reverse=True):
            different, ids = self._compare(self._leaves[index], leaves)
            if not different and _is_safe(asked):
                return self._take(index, ids, asked)
            if not different:
                said = "it was recorded fewer times than it is requested"
                raise NotOnTape(f"{what} once more: {said}; {_HOW_TO_RECORD}")
        if nearest is None:
            has = "all of it was replayed" if self.exchanges else "it has no exchange"
            raise NotOnTape(f"{what}: {has}; {_HOW_TO_RECORD}")
        near, different = nearest
        said = _differences_text(different, self._leaves[near], leaves)
        named = f"exchange {near + 1}, {name_of(self.exchanges[near]['request'])}"
        raise NotOnTape(f"{what}. The nearest is {named}:{said}\n{_HOW_TO_RECORD}")

    def _take(self, index: int, ids: dict[str, str], asked: dict[str, Any]) -> dict[str, Any]:
        self._used.add(index)
        self._ids |= ids
        taped = self.exchanges[index]["answer"]
        self._served += json.dumps(taped)
        answer: dict[str, Any] = _with_current_ids(taped, self._ids)
        bodies = [answer.get("json"), *(frame.get("data") for frame in answer.get("frames", ()))]
        for body in bodies if _method(asked) is not None else ():
            if isinstance(body, dict) and "jsonrpc" in body and body.get("id") is not None:
                body["id"] = asked["json"].get("id")
        return answer

    def _compare(self, taped: Leaves, asked: Leaves) -> tuple[list[str], dict[str, str]]:
        """Return the paths where a request differs, and the recorded ids mapped to current ids."""
        both = {
            where: (taped.get(where, _ABSENT), asked.get(where, _ABSENT)) for where in taped | asked
        }
        ids = {was: now for where, (was, now) in both.items() if self._is_clients(where, was, now)}
        known = self._ids | ids
        return [where for where, values in both.items() if not _fits(*values, known)], ids

    def _is_clients(self, where: str, was: Any, now: Any) -> bool:
        """Return whether a value is an id that the client made, which may differ.

        A context id that an earlier response of the tape contains belongs to the agent.
        """
        name = where.rpartition(".")[2]
        if name not in _MESSAGE_IDS + _CONTEXT_IDS or not isinstance(was, str):
            return False
        is_new = name in _MESSAGE_IDS or json.dumps(was) not in self._served
        return is_new and was != now and isinstance(now, str)


def _differences_text(different: Sequence[str], taped: Leaves, asked: Leaves) -> str:
    """Return the differences as text: a line each, for the first few."""
    lines = [
        f"\n  {where}: {_shown(taped.get(where, _ABSENT))} on the tape, "
        f"{_shown(asked.get(where, _ABSENT))} in the request"
        for where in different[:_LINES]
    ]
    more = len(different) - _LINES
    return "".join(lines) + (f"\n  and {more} more" if more > 0 else "")


def _shown(value: Any) -> str:
    text = "(nothing)" if value is _ABSENT else repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _method(request: Mapping[str, Any]) -> Any:
    """Return the method of a call of JSON-RPC."""
    call = request.get("json")
    return call.get("method") if isinstance(call, dict) and "jsonrpc" in call else None


def name_of(request: Mapping[str, Any]) -> str:
    """Return the name of a request for error messages."""
    method = _method(request)
    named = f" ({method})" if isinstance(method, str) else ""
    return f"{request['method']} {request['url']}{named}"


def _is_safe(request: Mapping[str, Any]) -> bool:
    """Return whether a request only reads."""
    operation = METHODS.get(_method(request))
    return bool((request["method"] if operation is None else operation.verb) == "GET")
