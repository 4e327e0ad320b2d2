"""A shared HTTP cache in front of an ASGI app; it stores and reuses whatever RFC 9111 allows."""

from __future__ import annotations

from typing import Any, NamedTuple


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
