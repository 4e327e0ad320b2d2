"""What a receiver takes, and for how long it remembers."""

from __future__ import annotations

import msgspec


class ReceiverLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a receiver takes. Times are in seconds.

    A body has ``max_bytes`` at most, and arrives within ``body_timeout``. ``queue`` notifications
    of ``queue_bytes`` together wait or are handled; beyond that the answer is 503. ``concurrency``
    handlers run at once, each for another task. A delivery may be ``max_age`` old. An id that was
    handled is known for ``remember``. A task stays with a replica that has died for ``lease``. At
    the end, ``drain`` is how long the queue may take.

    Raises ``ValueError`` for what is out of range.
    """

    max_bytes: int = 8 * 1024 * 1024
    body_timeout: float = 30.0
    queue: int = 1000
    queue_bytes: int = 64 * 1024 * 1024
    concurrency: int = 16
    max_age: float = 300.0
    remember: float = 48 * 3600.0
    lease: float = 15.0
    drain: float = 10.0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            least = 0 if name == "drain" else 1
            if not least <= value <= 2**40:
                raise ValueError(f"{name} is {least} or more, not {value}")
        if self.queue_bytes < self.max_bytes:
            raise ValueError("queue_bytes is max_bytes at least, or the largest body never fits")
        if self.remember < 2 * self.max_age:
            raise ValueError(
                "remember is twice max_age at least, or a delivery could be replayed when it is "
                "forgotten"
            )


DEFAULT_LIMITS = ReceiverLimits()
