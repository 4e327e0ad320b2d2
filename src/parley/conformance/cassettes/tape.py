"""The tape: exchanges in order, in a JSON file that people read and review."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from parley.client.errors import ClientError
from parley.conformance.cassettes.hiding import Hiding
from parley.conformance.cassettes.matching import Ids, RequestMatcher

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
