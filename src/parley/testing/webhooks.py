"""The webhooks of a test: a list that receives the notifications of agents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from parley.client.answer import Answer
from parley.model.tasks import Event, Task
from parley.push.http_sender import NOTIFICATION_ID, TOKEN, WebhookAnswer
from parley.wire import versions

WEBHOOK = "https://webhook.test/notifications"
"""A webhook address for tests. Notifications to any other address arrive too."""


class Delivery(msgspec.Struct, frozen=True):
    """A received notification: its address, headers (names in lower case), body and event.

    ``status`` is the HTTP status of the response. A rejected notification arrives again.
    """

    url: str
    headers: dict[str, str]
    body: bytes
    event: Event
    status: int

    @property
    def task_id(self) -> str:
        """The id of the event's task; empty for a direct message."""
        return self.event.id if isinstance(self.event, Task) else self.event.task_id

    @property
    def id(self) -> str:
        """The id of the notification, the same in every attempt to deliver it."""
        return self.headers.get(NOTIFICATION_ID.lower(), "")

    @property
    def token(self) -> str:
        """The token of the push configuration; empty without one."""
        return self.headers.get(TOKEN.lower(), "")

    @property
    def json(self) -> Any:
        """The body, decoded."""
        return msgspec.json.decode(self.body)

    def __repr__(self) -> str:
        refused = "" if 200 <= self.status < 300 else f", answered {self.status}"
        return f"Delivery({self.event!r}, to {self.url}{refused})"


class _Failure(msgspec.Struct):
    """An error response of a webhook. ``left`` is how many more times; ``None`` is always."""

    status: int
    headers: dict[str, str]
    url: str
    left: int | None


class Deliveries(list[Delivery]):
    """The notifications that arrived, in order. ``accepted`` leaves out rejected notifications.

    The real dispatcher delivers them, in order, with retries and a cursor in the store, but without
    HTTP. So a webhook may have any address that the server accepts.
    """

    def __init__(self) -> None:
        super().__init__()
        self._failures: list[_Failure] = []

    @property
    def accepted(self) -> list[Delivery]:
        """The notifications that were accepted."""
        return [each for each in self if 200 <= each.status < 300]

    @property
    def events(self) -> list[Event]:
        """The events that were accepted."""
        return [each.event for each in self.accepted]

    def to(self, url: str) -> list[Delivery]:
        """Return the accepted notifications of an address."""
        return [each for each in self.accepted if each.url == url]

    def fail(
        self,
        times: int | None = 1,
        *,
        status: int = 503,
        retry_after: float | None = None,
        url: str = "",
    ) -> None:
        """Answer the next ``times`` notifications with an error; ``None`` is for ever.

        ``status`` 0 is no response: the connection breaks. ``url`` limits the failure to one
        address. ``recover`` ends it.
        """
        if times is not None and times < 1:
            raise ValueError(f"times is 1 or more, or None for ever, not {times}")
        headers = {} if retry_after is None else {"Retry-After": f"{retry_after:g}"}
        self._failures.append(_Failure(status, headers, url, times))

    def recover(self) -> None:
        """Accept all notifications from now on."""
        self._failures.clear()

    async def receive(self, url: str, headers: Mapping[str, str], body: bytes) -> WebhookAnswer:
        """Receive a notification: the dispatcher's sender calls this instead of HTTP."""
        failure = self._next_failure(url)
        status = 200 if failure is None else failure.status
        names = {name.lower(): value for name, value in headers.items()}
        dialect = versions.dialect(names.get("a2a-version", versions.LATEST))
        event = dialect.http_json.read_event(body)
        self.append(Delivery(url, names, body, event, status))
        if status == 0:
            raise ConnectionResetError("the webhook broke the connection, as the test requested")
        return WebhookAnswer(status, {} if failure is None else failure.headers)

    def _next_failure(self, url: str) -> _Failure | None:
        for failure in self._failures:
            if failure.url in ("", url):
                if failure.left is not None:
                    failure.left -= 1
                    if not failure.left:
                        self._failures.remove(failure)
                return failure
        return None


def event_of(value: Any) -> Any:
    """Return the event of a delivery, the reply of an answer, and any other value unchanged."""
    if isinstance(value, Answer):
        return value.reply
    return value.event if isinstance(value, Delivery) else value
