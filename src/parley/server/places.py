"""How many may be here at once, and how many of those may be one caller's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from parley.model.errors import OverloadedError
from parley.model.service import CallContext


class Places:
    """So many places for something that lasts, of which a known caller gets a share.

    ``what`` names those who have one. ``share`` is the part of ``most`` that one caller may have,
    told apart by tenant and id; those who are not known have no share of their own, since nobody
    can tell how many they are.
    """

    def __init__(self, what: str, most: int, share: float) -> None:
        self._what = what
        self._most = most
        self._each = max(1, int(most * share))
        self._taken = 0
        self._of: dict[tuple[str, str], int] = {}

    @contextmanager
    def one(self, context: CallContext) -> Iterator[None]:
        """Have a place while the context lasts. Raises ``OverloadedError`` when there is none."""
        if self._taken >= self._most:
            raise OverloadedError(
                f"{self._taken} {self._what}, which is all that this server serves at once",
                retry_after=1,
            )
        caller = (context.tenant, context.caller.id)
        if not caller[1]:
            self._taken += 1
            try:
                yield
            finally:
                self._taken -= 1
            return
        his = self._of.get(caller, 0)
        if his >= self._each:
            raise OverloadedError(
                f"{his} {self._what} for this caller, which is as many as one caller may have here",
                retry_after=1,
            )
        self._taken += 1
        self._of[caller] = his + 1
        try:
            yield
        finally:
            self._taken -= 1
            self._of[caller] -= 1
            if not self._of[caller]:
                del self._of[caller]
