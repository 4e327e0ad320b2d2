"""The interfaces of one agent, called as if they were one (specification §8.3.2)."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec

from parley.client.bindings.binding import Binding
from parley.client.card.interface import Candidate
from parley.client.errors import ClientError, UnexpectedStatus, Unreachable, Untrusted
from parley.model.errors import (
    A2AError,
    UnsupportedOperationError,
    VersionNotSupportedError,
)
from parley.model.operations import Operation
from parley.model.service import CallContext, StreamItem
from parley.model.struct import A2AStruct
from parley.wire import versions

logger = logging.getLogger(__name__)

# Nothing is there that could have taken the request for one of the protocol.
_NOTHING_THERE = frozenset({404, 405})


class Interfaces:
    """A ``Binding`` over all of ``candidates``, of which it calls one: ``current``.

    The next is tried when it is certain that the request did not reach the agent: no connection,
    nothing that speaks the protocol at the address, or a refusal of the version. A server to which
    there is no connection is tried once, for whichever of its interfaces comes first: while it
    starts again, another is no better. What worked is called from then on. Requests carry the
    tenant of the interface that they go to.

    A change is logged, as a warning when the version is an older one.
    """

    def __init__(
        self, candidates: Sequence[Candidate], make: Callable[[Candidate], Binding], *, name: str
    ) -> None:
        self.current = candidates[0]
        self._candidates = candidates
        self._make = make
        self._made: dict[Candidate, Binding] = {}
        self._name = name
        logger.info("%s: calling %s", name, self.current)

    async def call(self, operation: Operation, request: A2AStruct, context: CallContext) -> Any:
        """Return what the operation answers."""
        refusals: list[A2AError | ClientError] = []
        for candidate, binding in self._in_order(refusals):
            try:
                answer = await binding.call(operation, _addressed(request, candidate), context)
            except (A2AError, ClientError) as error:
                if _never_arrived(error):
                    refusals.append(error)
                    continue
                if _came_from_there(error):
                    self._worked(candidate, refusals)
                raise
            self._worked(candidate, refusals)
            return answer
        raise _summary(refusals)

    async def stream(
        self, operation: Operation, request: A2AStruct, context: CallContext
    ) -> AsyncIterator[StreamItem]:
        """Yield what the operation streams."""
        refusals: list[A2AError | ClientError] = []
        for candidate, binding in self._in_order(refusals):
            items = binding.stream(operation, _addressed(request, candidate), context)
            begun = False
            try:
                async with aclosing(cast("AsyncGenerator[StreamItem, None]", items)) as open_items:
                    async for item in open_items:
                        if not begun:
                            begun = True
                            self._worked(candidate, refusals)
                        yield item
            except (A2AError, ClientError) as error:
                if not begun and _never_arrived(error):
                    refusals.append(error)
                    continue
                if not begun and _came_from_there(error):
                    self._worked(candidate, refusals)
                raise
            return
        raise _summary(refusals)

    async def aclose(self) -> None:
        """Close every binding that was used. Idempotent."""
        async with AsyncExitStack() as stack:
            for binding in self._made.values():
                stack.push_async_callback(binding.aclose)

    def _in_order(self, refusals: Sequence[Exception]) -> Iterator[tuple[Candidate, Binding]]:
        """Yield the current interface and then the others, each with a binding to call it over.

        ``refusals`` has, by the time the next is asked for, why those before did not do.
        """
        begins = self.current
        away = set()
        for candidate in (begins, *(other for other in self._candidates if other is not begins)):
            where = _server_of(candidate)
            if where in away:
                continue
            binding = self._made.get(candidate)
            if binding is None:
                binding = self._made[candidate] = self._make(candidate)
            if candidate is not begins:
                logger.info("%s: trying %s", self._name, candidate)
            yield candidate, binding
            if refusals and isinstance(refusals[-1], Unreachable):
                away.add(where)

    def _worked(self, candidate: Candidate, refusals: Sequence[Exception]) -> None:
        if not refusals or candidate is self.current:
            return
        before, self.current = self.current, candidate
        older = versions.SUPPORTED_VERSIONS.index(
            candidate.version
        ) > versions.SUPPORTED_VERSIONS.index(before.version)
        logger.log(
            logging.WARNING if older else logging.INFO,
            "%s: calling %s from now on (%s)",
            self._name,
            candidate,
            "; ".join(str(refusal) for refusal in refusals),
        )


def _server_of(candidate: Candidate) -> tuple[bool, str, str]:
    """Return what a connection is made to; that of gRPC is another than that of HTTP."""
    url = candidate.interface.url
    parts = urlsplit(url if "//" in url else f"//{url}")
    return candidate.binding == "GRPC", parts.scheme, parts.netloc


def _addressed(request: A2AStruct, candidate: Candidate) -> A2AStruct:
    if not hasattr(request, "tenant"):  # a request of an extension
        return request
    return msgspec.structs.replace(request, tenant=candidate.interface.tenant)


def _never_arrived(error: Exception) -> bool:
    """Whether it is certain that the agent has not taken the request, and never will there."""
    if isinstance(error, UnexpectedStatus):
        return error.status in _NOTHING_THERE
    return isinstance(error, Unreachable | VersionNotSupportedError)


def _came_from_there(error: Exception) -> bool:
    """Whether it is the agent's answer; that a version lacks an operation is known before."""
    return isinstance(error, A2AError) and not isinstance(error, UnsupportedOperationError)


def _summary(refusals: Sequence[A2AError | ClientError]) -> Exception:
    """Return what it means that every interface refused."""
    said = [refusal for refusal in refusals if not isinstance(refusal, Unreachable)]
    if said or len(refusals) == 1:
        return (said or refusals)[0]
    kind = Untrusted if all(isinstance(r, Untrusted) for r in refusals) else Unreachable
    return kind("; ".join(dict.fromkeys(str(refusal) for refusal in refusals)))
