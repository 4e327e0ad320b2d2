"""How many may be here at once, and how many of those may be one caller's."""

from __future__ import annotations

from contextlib import AbstractContextManager

from parley.model.errors import OverloadedError
from parley.model.service import CallContext


class ConcurrencyLimiter:
    """So many places for something that lasts, of which a known caller gets a share.

    ``what`` names those who have one. ``share`` is the part of ``most`` that one caller may have,
    told apart by tenant and owner; those who are not known have no share of their own, since nobody
    can tell how many they are.
    """

    def __init__(self, what: str, most: int, share: float) -> None:
        self._what = what
        self._most = most
        self._each = max(1, int(most * share))
        self._taken = 0
        self._of: dict[tuple[str, str], int] = {}

    def one(self, context: CallContext) -> AbstractContextManager[None]:
        """Have a place while the context lasts. Raises ``OverloadedError`` when there is none."""
        return _Slot(self, (context.tenant, context.caller.owner))

    def take(self, caller: tuple[str, str]) -> None:
        """Take a place for a caller, until ``give_back``. Raises ``OverloadedError``."""
        if self._taken >= self._most:
            raise OverloadedError(
                f"{self._taken} {self._what}, which is all that this server serves at once",
                retry_after=1,
            )
        if caller[1]:
            his = self._of.get(caller, 0)
            if his >= self._each:
                raise OverloadedError(
                    f"{his} {self._what} for this caller, which is as many as one caller may have "
                    "here",
                    retry_after=1,
                )
            self._of[caller] = his + 1
        self._taken += 1

    def give_back(self, caller: tuple[str, str]) -> None:
        """Give back a place of a caller."""
        self._taken -= 1
        if caller[1]:
            self._of[caller] -= 1
            if not self._of[caller]:
                del self._of[caller]


class _Slot:
    """A place of a caller, while the context lasts."""

    __slots__ = ("_caller", "_places")

    def __init__(self, places: ConcurrencyLimiter, caller: tuple[str, str]) -> None:
        self._places = places
        self._caller = caller

    def __enter__(self) -> None:
        self._places.take(self._caller)

    def __exit__(self, *error: object) -> None:
        self._places.give_back(self._caller)
