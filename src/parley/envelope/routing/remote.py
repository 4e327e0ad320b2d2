"""Agents of a registry, called as any client calls them: without the credentials of the caller or
of this server, within the egress policy, with the deadline and the call chain.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from parley.agent.remote.callees import UsableAgent, referred
from parley.agent.remote.connections import Connections
from parley.client.card.interface import declares
from parley.client.errors import (
    AddressNotAllowed,
    AuthenticationRequired,
    ClientError,
    Timeout,
    Unreachable,
)
from parley.envelope.answers import event, response, results_of, status_of, write_stream_event
from parley.envelope.errors import AgentUnavailable, DeadlineExceeded, task_error
from parley.envelope.messages import (
    OPERATION_PREFIX,
    Envelope,
    RequestPayload,
    ResponseMetadata,
    ResponsePayload,
    Source,
    Status,
    SubType,
)
from parley.envelope.routing.connected import passed_on_id
from parley.envelope.routing.strategies import AgentCandidate, NotForCaller, NotSent
from parley.envelope.server.directory import MessageContext
from parley.extensions.call_chain import CallChain, Chain
from parley.model.errors import InvalidParamsError
from parley.model.extensions import CALL_CHAIN
from parley.model.parts import Message, Part, Role
from parley.model.service import StreamItem
from parley.model.struct import Timestamp
from parley.model.tasks import Task

if TYPE_CHECKING:
    from parley.client.remote_agent import RemoteAgent
    from parley.registry.client.found import FoundAgent

log = logging.getLogger("parley.envelope")

FRESH_SECONDS = 30.0
SEARCH_SECONDS = 5.0
MAX_FOUND = 16
MAX_SEARCHES = 256
SKILL_KEY = "skill"


class RegistryAgents:
    """Finds agents in the registry of a server (``FindsAgents``), and calls them.

    The registry is asked without credentials: entries that are not for everyone stay hidden. What
    it answers counts for half a minute. ``own`` is the address of this server, whose agents are
    known already. ``chain_id`` names this server in call chains.
    """

    def __init__(
        self, registry: str, connections: Connections, *, own: str = "", chain_id: str = ""
    ) -> None:
        self._registry = registry
        self._connections = connections
        self._own = own.rstrip("/")
        self._chain_id = chain_id
        self._found: dict[tuple[str, str, str], tuple[float, tuple[RegisteredAgent, ...]]] = {}
        self._in_flight: dict[str, int] = {}
        self._searches = asyncio.Semaphore(4)

    async def find(self, *, type: str, action: str, id: str) -> Sequence[AgentCandidate]:
        """Return what the registry has (``FindsAgents``)."""
        key = type, action, id
        now = asyncio.get_running_loop().time()
        known = self._found.get(key)
        if known is None or known[0] < now:
            found = await self._search(type, action, id)
            if found is None:  # it is away: what was known counts a little longer
                found = () if known is None else known[1]
            self._found.pop(key, None)
            self._found[key] = known = now + FRESH_SECONDS, found
            while len(self._found) > MAX_SEARCHES:
                del self._found[next(iter(self._found))]
        return known[1]

    async def _search(self, type: str, action: str, id: str) -> tuple[RegisteredAgent, ...] | None:
        from parley.registry.client.places import AgentNotFound
        from parley.registry.client.remote_registry import RemoteRegistry

        filter = {
            **({"capabilities": action} if action else {}),
            **({"metadata.agentType": type} if type else {}),
        }
        try:
            async with (
                self._searches,
                asyncio.timeout(SEARCH_SECONDS),
                RemoteRegistry(
                    self._registry, auth=False, timeout=SEARCH_SECONDS, retries=0
                ) as registry,
            ):
                if id:
                    found = [await registry.agent(id)] if id.startswith("urn:air:") else []
                else:
                    need = " ".join(filter.values()).replace("-", " ").replace("_", " ")
                    found = await registry.find(need, filter=filter, limit=MAX_FOUND)
        except AgentNotFound:
            return ()
        except (ClientError, TimeoutError, ValueError) as error:
            log.warning("the registry %s cannot be asked for agents: %s", self._registry, error)
            return None
        return tuple(RegisteredAgent(each, self) for each in found if not self._is_own(each))

    def _is_own(self, found: FoundAgent) -> bool:
        return bool(self._own) and f"{found.card_url}/".startswith(f"{self._own}/")

    async def aclose(self) -> None:
        """Close the connections."""
        await self._connections.aclose()


class RegisteredAgent:
    """An agent that a registry lists."""

    def __init__(self, found: FoundAgent, agents: RegistryAgents) -> None:
        self._found = found
        self._agents = agents

    @property
    def id(self) -> str:
        """The identifier of its entry."""
        return self._found.identifier

    @property
    def in_flight(self) -> int:
        """How many requests this process waits for."""
        return self._agents._in_flight.get(self.id, 0)

    async def ask(self, request: Envelope, context: MessageContext) -> AsyncIterator[Envelope]:
        """Call the agent and yield its answers (``AgentCandidate``)."""
        payload = request.payload
        assert isinstance(payload, RequestPayload)
        self._check(payload)
        counts, connections = self._agents._in_flight, self._agents._connections
        counts[self.id] = counts.get(self.id, 0) + 1
        try:
            try:
                reference, options = referred(self._found)
                assert not isinstance(reference, UsableAgent)  # it was found at a registry
                shared = await connections.acquire(reference, options)
            except ClientError as error:
                raise NotSent(str(error)) from error
            try:
                agent = _with_context(shared.agent, context)
                async for answer in self._asked(agent, request, payload, context):
                    yield answer
            except Unreachable as error:
                connections.retire(shared)
                raise NotSent(str(error)) from error
            except (AuthenticationRequired, AddressNotAllowed) as error:
                raise NotForCaller from error
            except Timeout as error:
                words = "the agent did not answer within the timeout"
                raise DeadlineExceeded(words) from error
            except ClientError as error:
                log.warning("calling %s failed: %s", ascii(self.id[:200]), error)
                words = "the connection to the agent broke; it may have done what was asked"
                raise AgentUnavailable(words, retry_after=2.0) from error
            finally:
                connections.release(shared)
        finally:
            counts[self.id] -= 1
            if not counts[self.id]:
                del counts[self.id]

    def _check(self, payload: RequestPayload) -> None:
        """Refuse what would mix the tasks of callers: the agent knows this server alone."""
        metadata = payload.metadata
        is_operation = payload.action.startswith(OPERATION_PREFIX)
        if is_operation or metadata.task_id or metadata.context_id or metadata.after is not None:
            raise InvalidParamsError(
                f"{self.id} is on another server, and only new work is passed on to it: for its "
                "tasks and conversations, connect to the agent itself"
            )

    async def _asked(
        self,
        agent: RemoteAgent,
        request: Envelope,
        payload: RequestPayload,
        context: MessageContext,
    ) -> AsyncIterator[Envelope]:
        source = Source(agent_id=self.id)
        parameters = payload.parameters
        is_text = isinstance(parameters, str)
        message = Message(
            message_id=passed_on_id(request, context),
            role=Role.USER,
            parts=(Part(text=parameters) if is_text else Part(data=parameters),),
        )
        left = None
        if context.deadline is not None:
            left = max(0.001, context.deadline - asyncio.get_running_loop().time())
        metadata = {SKILL_KEY: payload.action, **CallChain.says(self._chain(left))}
        sub_type = request.message.sub_type
        if sub_type == SubType.NOTIFICATION:
            await agent.send(message, metadata=metadata, return_immediately=True, timeout=left)
            return
        is_command = sub_type == SubType.COMMAND
        if not is_command and not payload.metadata.stream:
            reply = await agent.send(message, metadata=metadata, timeout=left)
            yield response(request, _payload(reply), source=source)
            return
        answer: Task | Message | None = None
        async with agent.stream(message, metadata=metadata) as events:
            async for each in events:
                if isinstance(each, Message):
                    answer = each
                    break
                if is_command and answer is None and isinstance(each, Task):
                    answer = each
                    accepted = ResponseMetadata(task_id=each.id, context_id=each.context_id)
                    yield response(
                        request,
                        ResponsePayload(status=Status.ACCEPTED, metadata=accepted),
                        source=source,
                    )
                known = ResponseMetadata(task_id=events.task_id, context_id=events.context_id)
                results = (write_stream_event(StreamItem(each)),)
                part = ResponsePayload(status=Status.PARTIAL, results=results, metadata=known)
                yield event(request, part, source=source)
        last: Any = response
        if is_command and not isinstance(answer, Message):
            last = event
        if not isinstance(answer, Message):
            answer = await agent.get(events.task_id)
        yield last(request, _payload(answer), source=source)

    def _chain(self, left: float | None) -> Chain:
        deadline = None
        if left is not None:
            deadline = Timestamp.of(Timestamp.now() + timedelta(seconds=left))
        path = (self._agents._chain_id,) if self._agents._chain_id else ()
        return Chain(hops=1, deadline=deadline, path=path)


def _with_context(agent: RemoteAgent, context: MessageContext) -> RemoteAgent:
    """Return a connection whose calls belong to the trace of a message, and say their chain."""
    found = copy.copy(agent)
    extensions = agent.context.extensions
    if declares(agent.card, CALL_CHAIN):
        extensions |= {CALL_CHAIN}
    found.context = replace(agent.context, extensions=extensions, trace=context.trace)
    return found


def _payload(answer: Task | Message) -> ResponsePayload:
    results = results_of(answer)
    if isinstance(answer, Message):
        return ResponsePayload(
            status=Status.SUCCESS,
            results=results,
            metadata=ResponseMetadata(total_results=len(results), context_id=answer.context_id),
        )
    return ResponsePayload(
        status=status_of(answer),
        results=results,
        metadata=ResponseMetadata(
            total_results=len(results),
            task_id=answer.id,
            context_id=answer.context_id,
            state=answer.state.value,
        ),
        error=task_error(answer),
    )
