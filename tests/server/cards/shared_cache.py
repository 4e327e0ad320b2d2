"""A shared HTTP cache that keeps and reuses whatever RFC 9111 lets it, in front of an ASGI app."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

HEURISTIC = frozenset({200, 203, 204, 206, 300, 301, 308, 404, 405, 410, 414, 501})
"""The statuses that a cache may keep without being told (RFC 9110 §15.1)."""


class Answer(NamedTuple):
    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def values(self, name: str) -> list[str]:
        """Return the members of a list-valued header, in lower case."""
        found = ",".join(value for key, value in self.headers if key == name)
        return [each.strip().lower() for each in found.split(",") if each.strip()]


async def ask(
    app: Any, method: str, target: str, headers: dict[str, str], body: bytes = b""
) -> Answer:
    """Send one request to an ASGI app."""
    path, _, query = target.partition("?")
    given = {"host": "agents.example", **{name.lower(): value for name, value in headers.items()}}
    if body:
        given["content-length"] = str(len(body))
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "https",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in given.items()],
        "client": ("192.0.2.1", 50000),
        "server": ("192.0.2.2", 443),
    }
    sent: list[dict[str, Any]] = []
    came = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive() -> Any:
        return next(came, {"type": "http.disconnect"})

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return Answer(
        sent[0]["status"],
        [(name.decode().lower(), value.decode()) for name, value in sent[0]["headers"]],
        b"".join(message.get("body", b"") for message in sent[1:]),
    )


class SharedCache:
    """Answers from what it keeps; time stands still, so nothing that is fresh becomes stale."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._kept: list[tuple[tuple[str, str], dict[str, str], Answer]] = []
        self.hits = 0

    async def ask(
        self, method: str, target: str, headers: dict[str, str], body: bytes = b""
    ) -> Answer:
        """Return a stored answer if one may be reused (RFC 9111 §4), else the app's."""
        request = {name.lower(): value for name, value in headers.items()}
        key = ("GET" if method == "HEAD" else method, target)
        for stored, of_request, answer in self._kept:
            if stored == key and _selects(answer, of_request, request):
                self.hits += 1
                return answer
        answer = await ask(self._app, method, target, headers, body)
        if _may_store(method, request, answer):
            self._kept.append((key, request, answer))
        return answer


def _selects(answer: Answer, before: dict[str, str], now: dict[str, str]) -> bool:
    """Return whether the headers that an answer varies by are equal (§4.1)."""
    names = answer.values("vary")
    return "*" not in names and all(before.get(name) == now.get(name) for name in names)


def _may_store(method: str, request: dict[str, str], answer: Answer) -> bool:
    """Return whether a shared cache may store an answer, and reuse it without asking (§3, §4.2)."""
    control = answer.values("cache-control")
    if method != "GET" or any(each.startswith(("no-store", "private")) for each in control):
        return False
    if any(each.startswith("no-cache") for each in control):
        return False
    shared = ("public", "must-revalidate")
    is_shared = any(each in shared or each.startswith("s-maxage") for each in control)
    if "authorization" in request and not is_shared:
        return False
    ages = [re.match(r"(?:s-maxage|max-age)=(\d+)", each) for each in control]
    found = [int(age[1]) for age in ages if age]
    return max(found) > 0 if found else answer.status in HEURISTIC
