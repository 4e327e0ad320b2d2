"""A limit on how many requests of one kind are under way at once, in all and for each caller."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from parley.model.errors import OverloadedError
from parley.model.service import CallContext


class ConcurrencyLimiter:
    """A number of slots, of which each known caller gets a share.

    ``what`` names those that have a slot in errors. ``share`` is the part of ``limit`` that one
    caller may have; tenant and owner tell callers apart. Anonymous callers have no share of their
    own, because nothing tells how many they are.
    """

    def __init__(self, what: str, limit: int, share: float) -> None:
        self._what = what
        self._limit = limit
        self._caller_limit = max(1, int(limit * share))
        self._taken = 0
        self._by_caller: dict[tuple[str, str], int] = {}

    def slot(self, context: CallContext) -> AbstractContextManager[None]:
        """Have a slot while the context lasts. Raises ``OverloadedError`` if none is free."""
        return self.slot_of((context.tenant, context.caller.owner))

    @contextmanager
    def slot_of(self, caller: tuple[str, str]) -> Iterator[None]:
        """Have a slot for a caller, given as tenant and owner, while the context lasts."""
        self.acquire(caller)
        try:
            yield
        finally:
            self.release(caller)

    def acquire(self, caller: tuple[str, str]) -> None:
        """Acquire a slot for a caller, until ``release``. Raises ``OverloadedError``."""
        if self._taken >= self._limit:
            raise OverloadedError(
                f"{self._taken} {self._what}, which is all that this server serves at once",
                retry_after=1,
            )
        if caller[1]:
            taken = self._by_caller.get(caller, 0)
            if taken >= self._caller_limit:
                raise OverloadedError(
                    f"{taken} {self._what} for this caller, which is as many as one caller may "
                    "have here",
                    retry_after=1,
                )
            self._by_caller[caller] = taken + 1
        self._taken += 1

    def release(self, caller: tuple[str, str]) -> None:
        """Release a slot of a caller."""
        self._taken -= 1
        if caller[1]:
            self._by_caller[caller] -= 1
            if not self._by_caller[caller]:
                del self._by_caller[caller]
