"""Failover between the interfaces of one agent (specification §8.3.2)."""

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
from parley.model.errors import A2AError, UnsupportedOperationError, VersionNotSupportedError
from parley.model.operations import Operation
from parley.model.service import CallContext, StreamItem
from parley.model.struct import A2AStruct
from parley.wire import versions

logger = logging.getLogger(__name__)

# Nothing at the address can have processed the request as one of the protocol.
_NOTHING_THERE = frozenset({404, 405})


class FailoverBinding:
    """A ``Binding`` over all of ``candidates``, of which it calls one: ``current``.

    It tries the next one when the request certainly did not reach the agent: no connection, nothing
    that speaks the protocol at the address, or a refusal of the version. A server without a
    connection is tried only once per call, with its first interface: its other interfaces are as
    unreachable. The interface that works becomes ``current``. Requests carry the tenant of the
    interface that they go to.

    A change is logged, as a warning if the new version is older.
    """

    def __init__(
        self, candidates: Sequence[Candidate], make: Callable[[Candidate], Binding], *, name: str
    ) -> None:
        self.current = candidates[0]
        self._candidates = candidates
        self._make = make
        self._bindings: dict[Candidate, Binding] = {}
        self._name = name
        logger.info("%s: calling %s", name, self.current)

    async def call(self, operation: Operation, request: A2AStruct, context: CallContext) -> Any:
        """Return what the operation answers."""
        refusals: list[A2AError | ClientError] = []
        for candidate, binding in self._in_order(refusals):
            try:
                answer = await binding.call(operation, _with_tenant(request, candidate), context)
            except (A2AError, ClientError) as error:
                if _is_undelivered(error):
                    refusals.append(error)
                    continue
                if _is_agents_answer(error):
                    self._use(candidate, refusals)
                raise
            self._use(candidate, refusals)
            return answer
        raise _combined(refusals)

    async def stream(
        self, operation: Operation, request: A2AStruct, context: CallContext
    ) -> AsyncIterator[StreamItem]:
        """Yield what the operation streams."""
        refusals: list[A2AError | ClientError] = []
        for candidate, binding in self._in_order(refusals):
            items = binding.stream(operation, _with_tenant(request, candidate), context)
            begun = False
            try:
                async with aclosing(cast("AsyncGenerator[StreamItem, None]", items)) as open_items:
                    async for item in open_items:
                        if not begun:
                            begun = True
                            self._use(candidate, refusals)
                        yield item
            except (A2AError, ClientError) as error:
                if not begun and _is_undelivered(error):
                    refusals.append(error)
                    continue
                if not begun and _is_agents_answer(error):
                    self._use(candidate, refusals)
                raise
            return
        raise _combined(refusals)

    async def aclose(self) -> None:
        """Close every binding that was used. Idempotent."""
        async with AsyncExitStack() as stack:
            for binding in self._bindings.values():
                stack.push_async_callback(binding.aclose)

    def _in_order(self, refusals: Sequence[Exception]) -> Iterator[tuple[Candidate, Binding]]:
        """Yield the current interface and then the others, each with its binding.

        The caller adds the error of a failed interface to ``refusals`` before it asks for the next.
        """
        first = self.current
        unreachable: set[tuple[bool, str, str]] = set()
        for candidate in (first, *(other for other in self._candidates if other is not first)):
            if unreachable and _server_of(candidate) in unreachable:
                continue
            if candidate is not first:
                logger.info("%s: trying %s", self._name, candidate)
            yield candidate, self._binding_of(candidate)
            if refusals and isinstance(refusals[-1], Unreachable):
                unreachable.add(_server_of(candidate))

    def _binding_of(self, candidate: Candidate) -> Binding:
        binding = self._bindings.get(candidate)
        if binding is None:
            binding = self._bindings[candidate] = self._make(candidate)
        return binding

    def _use(self, candidate: Candidate, refusals: Sequence[Exception]) -> None:
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
    """Return the server to connect to; gRPC and HTTP use different connections."""
    url = candidate.interface.url
    parts = urlsplit(url if "//" in url else f"//{url}")
    return candidate.binding == "GRPC", parts.scheme, parts.netloc


def _with_tenant(request: A2AStruct, candidate: Candidate) -> A2AStruct:
    tenant = candidate.interface.tenant
    # A request of an extension has none.
    if getattr(request, "tenant", tenant) == tenant:
        return request
    return msgspec.structs.replace(request, tenant=tenant)


def _is_undelivered(error: Exception) -> bool:
    """Return whether the agent certainly did not get the request, and cannot at this address."""
    if isinstance(error, UnexpectedStatus):
        return error.status in _NOTHING_THERE
    return isinstance(error, Unreachable | VersionNotSupportedError)


def _is_agents_answer(error: Exception) -> bool:
    """Return whether the agent sent this error; the client itself knows what a version lacks."""
    return isinstance(error, A2AError) and not isinstance(error, UnsupportedOperationError)


def _combined(refusals: Sequence[A2AError | ClientError]) -> Exception:
    """Return one error for those of all interfaces."""
    answers = [refusal for refusal in refusals if not isinstance(refusal, Unreachable)]
    if answers or len(refusals) == 1:
        return (answers or refusals)[0]
    kind = Untrusted if all(isinstance(r, Untrusted) for r in refusals) else Unreachable
    return kind("; ".join(dict.fromkeys(str(refusal) for refusal in refusals)))
