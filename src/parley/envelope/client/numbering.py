"""Which messages were taken already: by their ids, and EVENTs by their numbers."""

from __future__ import annotations

from collections import OrderedDict

MAX_IDS = 4096
MAX_NUMBERS = 1024


class SeenIds:
    """The last ids of messages that were taken, so that each is taken once."""

    def __init__(self, limit: int = MAX_IDS) -> None:
        self._limit = limit
        self._ids: OrderedDict[str, None] = OrderedDict()

    def is_new(self, id: str) -> bool:
        """Note an id; return whether it was not known."""
        if id in self._ids:
            self._ids.move_to_end(id)
            return False
        self._ids[id] = None
        if len(self._ids) > self._limit:
            self._ids.popitem(last=False)
        return True

    def forget(self, id: str) -> None:
        """Take an id as new again."""
        self._ids.pop(id, None)


class EventNumbers:
    """The numbers of the EVENTs of one stream that were taken.

    Each EVENT is taken once, also one that another overtook. ``after`` is the number up to which
    there is no gap, where a cut stream goes on: nothing behind it was missed. Of more than
    ``limit`` numbers beyond a gap, the gap is given up.
    """

    def __init__(self, after: int | None = None, limit: int = MAX_NUMBERS) -> None:
        self.after = after
        self._first = after
        self._limit = limit
        self._beyond: set[int] = set()

    def is_new(self, number: int) -> bool:
        """Note a number; return whether it was not taken yet."""
        if self.after is None:
            self.after = self._first = number
            return True
        if self._first is not None and number < self._first:
            # Later ones overtook the beginning of the stream.
            self._beyond.update(range(self._first, self.after + 1)[-self._limit :])
            self._first = self.after = number
            self._go_on()
            return True
        if number <= self.after or number in self._beyond:
            return False
        self._beyond.add(number)
        if len(self._beyond) > self._limit:
            self.after = min(self._beyond)
        self._go_on()
        return True

    def _go_on(self) -> None:
        assert self.after is not None
        self._beyond.discard(self.after)
        while self.after + 1 in self._beyond:
            self.after += 1
            self._beyond.discard(self.after)
