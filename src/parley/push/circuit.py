"""The circuit breaker of a destination: after failures in a row over all of its webhooks it gets
one probe at a time, until it answers.

A destination is what one caller has at one origin, so nobody's failing webhooks hold up another's.
"""

from __future__ import annotations

from parley.model.backoff import uniform

OPENS_AFTER = 5
"""How many failures in a row open a circuit."""


class Circuit:
    """Closed: deliveries go through. Open: none do. Half-open: one probe decides.

    A failure is no answer, or one that says that the server is unable (5xx, 429). A refusal of one
    webhook (another 4xx) is an answer. Times are by the loop's clock.
    """

    __slots__ = ("failures", "opened", "probe", "reason", "until")

    def __init__(self) -> None:
        self.failures = 0
        self.probe: object = None
        self.opened = 0  # how often since it was closed
        self.until = 0.0
        self.reason = ""

    @property
    def is_open(self) -> bool:
        """Whether it is open or half-open."""
        return self.opened > 0

    def remaining(self, now: float) -> float:
        """Return how many seconds until the next probe, 0 if one is due or none is needed."""
        return max(0.0, self.until - now) if self.opened else 0.0

    def wait(self, who: object, now: float, patience: float) -> float:
        """Return how many seconds to wait before asking again, 0 to send now.

        Who gets 0 from an open circuit is its probe, until ``released``. Others wait for it, for
        ``patience`` at most.
        """
        if not self.opened or self.probe is who:
            return 0.0
        if self.probe is not None:
            return patience * uniform(0.5, 1.0)
        if now < self.until:
            # Those that wait do not all come back at once.
            return (self.until - now) * uniform(1.0, 1.1)
        self.probe = who
        return 0.0

    def succeeded(self) -> bool:
        """Note an answer. Return whether it closed the circuit."""
        was_open, self.opened = self.opened > 0, 0
        self.failures, self.probe, self.reason = 0, None, ""
        return was_open

    def failed(self, who: object, reason: str) -> bool:
        """Note a failure. Return whether it opens the circuit, again or for the first time.

        What was under way when the circuit opened changes nothing.
        """
        self.failures += 1
        if self.failures < OPENS_AFTER or (self.opened and self.probe is not who):
            return False
        self.probe = None
        self.opened += 1
        self.reason = reason
        return True

    def released(self, who: object) -> None:
        """Note that whoever may be the probe sends nothing more."""
        if self.probe is who:
            self.probe = None
