"""One delivery as it arrived, and why it is refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

ID = "webhook-id"
TIMESTAMP = "webhook-timestamp"
SIGNATURE = "webhook-signature"
NOTIFICATION_ID = "a2a-notification-id"
TOKENS = ("x-a2a-notification-token", "a2a-notification-token")
"""The header of a configuration's token; the official Go SDK sends it by the second name."""

VERSION = "a2a-version"

MAX_ID = 2048
"""The characters of a delivery's id."""


class NotificationRefused(Exception):
    """A delivery is not accepted. ``reason`` is for the log of the receiver, without any secret.

    ``status`` is that of the answer, which does not say the reason: 401 for a proof that is missing
    or wrong, 403 for one that is not for here or now, 400 and others for a request of another form.
    """

    def __init__(self, status: int, reason: str, *, retry_after: int = 0) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.retry_after = retry_after


class DeliveredRequest(msgspec.Struct, frozen=True):
    """The headers of a delivery, by names in lower case, and its bytes. ``now`` is the time."""

    headers: Mapping[str, tuple[str, ...]]
    body: bytes
    now: float

    @classmethod
    def of(
        cls, headers: Iterable[tuple[bytes, bytes]], body: bytes, now: float
    ) -> DeliveredRequest:
        """Return a request with the headers of ASGI."""
        found: dict[str, tuple[str, ...]] = {}
        for name, value in headers:
            key = name.decode("latin-1").lower()
            found[key] = (*found.get(key, ()), value.decode("latin-1").strip(" \t"))
        return cls(found, body, now)

    def header(self, name: str) -> str:
        """Return the value of a header, empty without it.

        Raises ``NotificationRefused`` if it is there twice: another reader may take the other one.
        """
        values = self.headers.get(name, ())
        if len(values) > 1:
            raise NotificationRefused(400, f"the header {name} is there {len(values)} times")
        return values[0] if values else ""

    @property
    def id(self) -> str:
        """The id of the delivery, empty without one. Raises ``NotificationRefused``."""
        found, other = self.header(ID), self.header(NOTIFICATION_ID)
        if found and other and found != other:
            raise NotificationRefused(400, f"{ID} and {NOTIFICATION_ID} differ")
        return checked_id(found or other)

    @property
    def timestamp(self) -> int | None:
        """The time of the attempt. Raises ``NotificationRefused`` for one that is no number."""
        text = self.header(TIMESTAMP)
        if not text:
            return None
        if not (text.isascii() and text.isdecimal() and len(text) <= 12):
            raise NotificationRefused(400, f"{TIMESTAMP} is not a number of seconds")
        return int(text)


def checked_id(id: str) -> str:
    """Return the id of a delivery. Raises ``NotificationRefused`` for one not to be logged."""
    if len(id) > MAX_ID or not id.isascii() or not id.isprintable():
        raise NotificationRefused(400, "the id of the delivery is malformed")
    return id


class Verified(msgspec.Struct, frozen=True):
    """What a proof says: which ``scheme`` it is of, and the ids that it covers, if it does.

    ``sender`` tells senders apart where several are accepted: the ids of one are none of another's.
    """

    scheme: str
    id: str = ""
    task_id: str | None = None
    sender: str = ""
