"""The agents that a turn may call: local agents (``Agent(uses=[...])``), and addresses.

A local agent is called through its ``A2AService``, without a network. The log of a task identifies
an agent by an address without secrets, which is the same in every run.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, cast
from urllib.parse import urlsplit, urlunsplit

import msgspec
from msgspec.structs import replace

from parley.agent.uses import UsableAgent
from parley.client.calls.service import RemoteService
from parley.client.card.interface import Candidate
from parley.client.card.resolver import CatalogReference, ForeignCard, Reference
from parley.client.card.trust import NOT_VERIFIED
from parley.client.errors import ClientError
from parley.client.extensions import activate
from parley.client.files.stream import FileStream, Progress
from parley.client.files.transfer import AgentFiles
from parley.client.message import Sendable
from parley.client.remote_agent import RemoteAgent
from parley.client.retry import Retry
from parley.engine.caller import caller_in
from parley.engine.turn.attempt import Attempt, RemoteCall
from parley.extensions.questions import InTaskAuthorization, TypedQuestions
from parley.model.cards import AgentCard, AgentExtension, AgentInterface
from parley.model.errors import A2AError, OverloadedError
from parley.model.extensions import CALL_CHAIN, IDEMPOTENT_SEND, Extension
from parley.model.operations import (
    BY_NAME,
    CancelTaskRequest,
    GetExtendedAgentCardRequest,
    GetTaskRequest,
    Operation,
    SendMessageRequest,
)
from parley.model.parts import Part
from parley.model.service import A2AService, CallContext, Caller, StreamItem
from parley.model.struct import A2AStruct, encode
from parley.security.authorization import Authorization, access_of
from parley.security.owner import OwnerPolicy
from parley.wire import versions

LOCAL = "agent:"
"""The prefix of a local agent's address in a task's log. Its key follows."""

Callee = Reference | CatalogReference | UsableAgent
"""The agents that a turn may call."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Connectable:
    """An agent with the options of its connection: ``parley.compose.part(address, bearer=...)``."""

    target: Callee | None = None
    connection: Mapping[str, Any] = field(default_factory=dict)


def referred(agent: Callee) -> tuple[Reference | UsableAgent, dict[str, Any]]:
    """Return the reference of an agent, and its options if it comes from a registry."""
    if not isinstance(agent, CatalogReference):
        return agent, {}
    return agent.reference, {} if agent.egress is None else {"egress": agent.egress}


def address_of(reference: Reference | UsableAgent) -> str:
    """Return the address of an agent, without user, password, query and fragment.

    A local agent has its key for an address, an agent given by its card the address of its first
    interface. A card in text form has a digest of the text.
    """
    if isinstance(reference, UsableAgent):
        return LOCAL + reference.key
    if isinstance(reference, AgentCard):
        interfaces = reference.supported_interfaces
        return _bare(interfaces[0].url) if interfaces else f"card:{reference.name}"
    if isinstance(reference, str) and not reference.lstrip().startswith("{"):
        return _bare(reference)
    if isinstance(reference, str | bytes):
        data = reference.encode() if isinstance(reference, str) else reference
        return f"card:{hashlib.sha256(data).hexdigest()[:32]}"
    if isinstance(reference, os.PathLike):
        return os.fspath(reference)
    return f"card:{_digest(reference.card if isinstance(reference, ForeignCard) else reference)}"


def card_of(reference: Reference | UsableAgent, agent: RemoteAgent) -> dict[str, Any] | None:
    """Return the card for finding the agent again; ``None`` if its address is enough."""
    if isinstance(reference, UsableAgent):
        return None
    if isinstance(reference, str) and "://" in reference and not reference.lstrip().startswith("{"):
        return None
    found: dict[str, Any] = msgspec.json.decode(agent.card_json)
    return found


def _bare(address: str) -> str:
    if "://" not in address:
        return address
    parts = urlsplit(address)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))


def _digest(value: Any) -> str:
    data = msgspec.json.encode(value, order="sorted", enc_hook=str)
    return hashlib.sha256(data).hexdigest()[:32]


RETRY = Retry(first=0.05, limit=1.0, streams=3)
"""The retries of local calls: no message is lost, but an agent may have no capacity."""

PASSED_ON: tuple[Extension, ...] = (TypedQuestions(), InTaskAuthorization())
"""The extensions that are activated for a call if the turn's caller activates them: their data is
in questions, which are passed on.
"""


class LocalService(msgspec.Struct, frozen=True, kw_only=True):
    """An agent of this process as the host runs it.

    ``is_ending``: the host is stopping, and accepts no messages; ``note_cancel`` logs a
    cancellation even then.
    """

    agent: UsableAgent
    service: A2AService
    card: AgentCard
    owner: OwnerPolicy
    authorization: Authorization | None
    is_ending: Callable[[], bool]
    note_cancel: Callable[[str, Caller], Awaitable[None]]


class LocalBinding:
    """A ``Binding`` without bytes: it calls the agent's service.

    The agent's policy is called as for an external request, and the permissions that it requires of
    every caller apply. The security schemes of its addresses do not apply: the author who composes
    agents decides who may call them.
    """

    def __init__(self, local: LocalService) -> None:
        self._local = local
        interface = AgentInterface(
            url=f"{LOCAL}{local.agent.key}",
            protocol_binding="LOCAL",
            protocol_version=versions.LATEST,
        )
        self.current = Candidate(interface, "LOCAL", versions.LATEST)

    async def call(self, operation: Operation, request: A2AStruct, context: CallContext) -> Any:
        """Return the answer of the operation."""
        await self._permit(operation, request, context)
        if isinstance(request, CancelTaskRequest) and self._local.is_ending():
            # The service rejects it during a shutdown; the log suffices, without waiting for other
            # processes.
            await self._local.note_cancel(request.id, context.caller)
            request, operation = GetTaskRequest(id=request.id), BY_NAME["GetTask"]
        try:
            return await getattr(self._local.service, operation.method)(request, context)
        except OverloadedError:
            await self._stay_until_the_end()
            raise

    async def stream(
        self, operation: Operation, request: A2AStruct, context: CallContext
    ) -> AsyncIterator[StreamItem]:
        """Yield the items of the operation's stream."""
        await self._permit(operation, request, context)
        items = getattr(self._local.service, operation.method)(request, context)
        try:
            async with aclosing(cast("AsyncGenerator[StreamItem, None]", items)) as events:
                async for item in events:
                    yield item
        except OverloadedError:
            await self._stay_until_the_end()
            raise

    async def aclose(self) -> None:
        """Do nothing: there is nothing to close."""

    async def _permit(self, operation: Operation, request: A2AStruct, context: CallContext) -> None:
        """Check the agent's requirement for every caller, and call its policy.

        Admission calls the policy for messages. The caller who began a task may cancel it.
        """
        rules = self._local.authorization
        if rules is None:
            return
        if operation.request is not CancelTaskRequest:
            rules.check_identity(context.caller)
        if rules.policy is None or operation.request is SendMessageRequest:
            return
        access = access_of(
            operation.name,
            request,
            context.caller,
            agent=self._local.agent.key,
            tenant=context.tenant,
        )
        await rules.permit(access)

    async def _stay_until_the_end(self) -> None:
        """Wait for ever if the host stops: this turn is released, and continues in another process.

        Otherwise the agent's rejection would be treated as its answer.
        """
        if self._local.is_ending():
            await asyncio.get_running_loop().create_future()


class LocalFiles(AgentFiles):
    """The files for a local agent: they are not transferred, and stay in their storage.

    ``keep`` makes a file that is too large for a message one by reference. ``opened`` reads a part.
    ``lent`` returns a part that names a file of the caller by an address that the other agent may
    read.
    """

    def __init__(
        self,
        name: str,
        *,
        keep: Callable[[object], Awaitable[object]],
        opened: Callable[[Part], FileStream],
        lent: Callable[[Part], Awaitable[Part]],
    ) -> None:
        self._agent_name = name
        self._lent = lent
        self._keep = keep
        self._opened = opened

    async def aclose(self) -> None:
        """Do nothing, since there are no connections."""

    @property
    def inline_bytes(self) -> int | None:
        """``None``, since there is no transfer."""
        return None

    async def by_reference(
        self, message: Sendable | None, files: Sequence[str | Path | bytes | Part]
    ) -> tuple[Sendable | None, Sequence[str | Path | bytes | Part]]:
        """Return a message's content and files, the large ones by reference."""
        is_list = isinstance(message, list | tuple)
        contents: list[Any] = list(cast("Any", message)) if is_list else [message]
        kept: list[Any] = [await self._keep(each) for each in contents]
        others = [await self._keep(Path(f) if isinstance(f, str) else f) for f in files]
        return (kept if is_list else kept[0]), cast("list[Any]", others)

    async def lend(self, request: SendMessageRequest) -> SendMessageRequest:
        """Return a request whose file parts the other agent may read."""
        message = request.message
        if not any(part.url for part in message.parts):
            return request
        parts = tuple([await self._lent(p) if p.url else p for p in message.parts])
        return replace(request, message=replace(message, parts=parts))

    async def upload(self, given: Any, **options: Any) -> Part:
        """Raise an error: a file is passed to ``send``."""
        raise ClientError(
            f"{self._agent_name!r} is an agent of this process, to which nothing is uploaded: give "
            "the file to send(files=[...])"
        )

    def open(self, part: Part, *, progress: Progress | None = None) -> FileStream:
        """Return the bytes of a part as a stream."""
        return self._opened(part)


class LocalAgent(RemoteAgent):
    """The client of a local agent, for one caller."""

    def __init__(
        self,
        local: LocalService,
        context: CallContext,
        files: LocalFiles,
        extensions: Sequence[Extension | AgentExtension | str] = (),
    ) -> None:
        card = _local_card(local.card)
        asked = [each for each in PASSED_ON if each.uri in context.extensions]
        self._activation = activate(card, [*asked, *extensions], idempotent=True)
        declared = {extension.uri for extension in card.capabilities.extensions}
        uris = (self._activation.uris & declared) | {CALL_CHAIN}
        self.context = replace(context, extensions=frozenset(uris))
        self.local = local
        self.card_trust = NOT_VERIFIED
        self.card_json = encode(card)
        self._interfaces = cast("Any", LocalBinding(local))
        self._retry = RETRY
        self._remote = RemoteService(self._interfaces, card, self._retry)
        self.service = cast("A2AService", self._remote)
        self._http = None
        self._files = files
        self._skipped_interfaces = ()

    @property
    def has_credentials(self) -> bool:
        """False: the turn's caller is the caller."""
        return False

    async def aclose(self) -> None:
        """Do nothing, since there is no connection. Idempotent."""

    async def authorize(self, *args: Any, **options: Any) -> NoReturn:
        """Raise an error: the caller sends the credential to the address that the task names."""
        raise ClientError(
            "a credential goes from the caller to the agent that asks for it: pass the question on "
            "(pass_questions=True)"
        )

    async def refresh_card(self) -> AgentCard:
        """Return the agent's card."""
        return self.card

    async def extended_card(self) -> AgentCard:
        """Return the card for the turn's caller; it replaces ``card``."""
        request = GetExtendedAgentCardRequest()
        card: AgentCard = await self.service.get_extended_agent_card(request, self.context)
        self._remote.card, self.card_json = _local_card(card), encode(card)
        return card


class LocalAgents:
    """The local agents that the turns of one agent call.

    ``agents`` are by key. ``base_url`` returns the address of the calling agent as the caller of a
    turn sees it; ``keep`` makes a large file of a turn one by reference, ``opened`` opens a file
    part, ``lent`` returns a part that the other agent may read too.
    """

    def __init__(
        self,
        name: str,
        agents: Mapping[str, LocalService],
        *,
        base_url: Callable[[Attempt], str],
        keep: Callable[[Attempt, object], Awaitable[object]],
        opened: Callable[[Attempt, Part], FileStream],
        lent: Callable[[Attempt, Part], Awaitable[Part]],
    ) -> None:
        self._name = name
        self._agents = agents
        self._lent = lent
        self._base_url = base_url
        self._keep = keep
        self._opened = opened

    def check(self, agent: UsableAgent) -> LocalService:
        """Return an agent. Raises ``ValueError`` if it is not in ``uses``."""
        found = self._agents.get(agent.key)
        if found is None or found.agent is not agent:
            raise not_used(self._name, agent)
        return found

    def of_turn(
        self, agent: UsableAgent, attempt: Attempt, options: Mapping[str, Any]
    ) -> LocalAgent:
        """Return the client of an agent for a turn, which calls as the turn's caller.

        Raises ``ValueError`` for options that do not apply to local calls.
        """
        if others := sorted(options.keys() - {"extensions"}):
            raise ValueError(
                f"{agent.name!r} is an agent of this process, which is called as the caller of the "
                f"turn and without a network: leave out {', '.join(f'{each}=' for each in others)}"
            )
        local, request = self.check(agent), attempt.request
        context = CallContext(
            caller=self._as_proved(local, request.caller),
            tenant=request.tenant,
            version=versions.LATEST,
            extensions=request.extensions,
            trace=request.trace,
            base_url=self._base_url(attempt),
        )
        files = LocalFiles(
            agent.name,
            keep=lambda content: self._keep(attempt, content),
            opened=lambda part: self._opened(attempt, part),
            lent=lambda part: self._lent(attempt, part),
        )
        return LocalAgent(local, context, files, options.get("extensions", ()))

    def of_call(self, call: RemoteCall) -> LocalAgent | None:
        """Return the client for the rest of a call, ``None`` for a call of a remote agent."""
        if not call.address.startswith(LOCAL):
            return None
        local = self._agents.get(call.address.removeprefix(LOCAL))
        if local is None:
            return None
        caller = self._as_proved(local, caller_in(call.caller, ""))
        context = CallContext(caller=caller, tenant=call.tenant, version=versions.LATEST)
        return LocalAgent(local, context, NO_FILES)

    def caller_of(self, agent: LocalAgent, call: RemoteCall | None) -> LocalAgent:
        """Return the client for a call of an earlier turn, which may have had another caller.

        The task belongs to that caller, unless the agent's owner policy assigns it to both.
        """
        if call is None:
            return agent
        local, now = agent.local, agent.context.caller
        then = self._as_proved(local, caller_in(call.caller, ""))
        try:
            is_same = local.owner.key_of(then) == local.owner.key_of(now)
        except A2AError:
            is_same = False
        if is_same:
            return agent
        return LocalAgent(local, replace(agent.context, caller=then), cast("Any", agent._files))

    def _as_proved(self, local: LocalService, caller: Caller) -> Caller:
        """Return a caller with its scopes granted by all schemes that the agent's skills
        require."""
        rules = local.authorization
        if rules is None or not rules.skills or not caller.authenticated:
            return caller
        schemes = {scheme for each in rules.skills.values() for scheme in each.schemes}
        return replace(caller, granted=dict.fromkeys(schemes, caller.scopes))


def not_used(name: str, agent: UsableAgent) -> ValueError:
    """Return the error for a call of a local agent that is not listed in ``uses``."""
    return ValueError(
        f"{name!r} calls the agent {agent.name!r} of this process, which it does not use: write "
        f"Agent({name!r}, ..., uses=[...]) with that agent in the list, so that both run together; "
        "or serve it, and call its address"
    )


def _local_card(card: AgentCard) -> AgentCard:
    """Return a card for local calls: the agent streams, and answers repeats only once."""
    capabilities = card.capabilities
    declared = {extension.uri for extension in capabilities.extensions}
    added = [uri for uri in (IDEMPOTENT_SEND, CALL_CHAIN) if uri not in declared]
    extensions = (*capabilities.extensions, *[AgentExtension(uri=uri) for uri in added])
    return replace(card, capabilities=replace(capabilities, streaming=True, extensions=extensions))


async def _as_it_is(content: Any) -> Any:
    return content


def _none(part: Part) -> FileStream:
    raise ClientError("this client has no files: it only cancels tasks")


NO_FILES = LocalFiles("", keep=_as_it_is, opened=_none, lent=_as_it_is)
"""The files of a client that only cancels."""
