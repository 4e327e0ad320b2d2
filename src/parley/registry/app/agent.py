"""The registry as an A2A agent: agents find others by a need in words, and register themselves.

A need is answered with catalog entries (ARD §5.3.6). Who registers over a socket has the rights of
publishing over REST.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec

from parley.agent.agent import Agent
from parley.agent.turn import Turn
from parley.engine.agent_options import Execution
from parley.model.errors import InvalidParamsError, PermissionDeniedError
from parley.model.parts import Part
from parley.model.service import Caller
from parley.registry.app.routes import viewer_of
from parley.registry.app.searching import SearchOperations
from parley.registry.catalog.searching import MAX_PAGE, QueryModel, SearchRequest
from parley.registry.health.prober import Heartbeats
from parley.registry.publishing.pushing import EntryPublishing, PublishOptions
from parley.registry.served.registration import outcome_of

# The registry as an A2A agent: a need in words is answered with catalog entries (ARD §5.3.6).

PATH = "/a2a"
KEY = "find-agents"
SHOWN = 5
SECONDS = 15.0
"""How long a search may take before its answer becomes a task."""


class _Asked(SearchRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The data part that a caller may send beside its words, or in their place."""

    query: QueryModel = QueryModel()
    page_size: int = SHOWN


def finding_agent(
    name: str,
    searching: SearchOperations,
    running: Callable[[Agent], AbstractAsyncContextManager[Any]],
) -> Agent:
    """Return the agent. ``running`` is entered when it starts, and left when it stops."""
    agent = Agent(
        name,
        description="Finds agents by what they can do. Say what you need; the answer has a data "
        "part for each agent found, an entry of a catalog with the address of its card.",
        version="1.0.0",
        key=KEY,
        input_modes=("text/plain", "application/json"),
        output_modes=("application/json", "text/plain"),
        execution=Execution(direct_reply_timeout=SECONDS),
        lifespan=running,
    )

    @agent.skill(
        id=KEY,
        name="Find agents",
        description="Finds agents by what they can do: say what you need. A data part may have "
        "the filter of a search by REST.",
        tags=["registry", "discovery", "search"],
        examples=["find me an agent that converts currencies", "which agents can book a flight?"],
    )
    async def find_agents(turn: Turn) -> list[Part]:
        asked = _asked(turn)
        base = turn.base_url.removesuffix(PATH)
        try:
            found = await searching.found(asked, viewer_of(turn.caller), base)
        except InvalidParamsError as error:
            turn.reject(error.message)
        results = found.results
        said = {0: "No agent matches.", 1: "One agent matches."}
        words = said.get(len(results), f"{len(results)} agents match, the best first.")
        parts = [Part(text=words)]
        parts += [Part(data=each, media_type="application/json") for each in results]
        more = msgspec.to_builtins(found)
        del more["results"]
        if more:
            parts.append(Part(data=more, media_type="application/json"))
        return parts

    return agent


def _asked(turn: Turn) -> SearchRequest:
    """Return the search that a message asks for."""
    given = _Asked()
    for part in turn.parts:
        if part.has_data:
            try:
                given = msgspec.convert(part.data, _Asked)
            except msgspec.ValidationError as error:
                turn.reject(f"the data part is no search: {error}")
    words = " ".join(each for each in (turn.text.strip(), given.query.text.strip()) if each)
    if not words:
        turn.reject("say what you need, such as: find me an agent that converts currencies")
    if not 1 <= given.page_size <= MAX_PAGE:
        turn.reject(f"pageSize is between 1 and {MAX_PAGE}")
    return msgspec.structs.replace(given, query=msgspec.structs.replace(given.query, text=words))


# Registration over sockets of the registry itself: with the rights of publishing over REST.


class IndexRegistrar:
    """Publishes what agents register in the index of this registry (``AgentRegistrar``)."""

    def __init__(self, publishing: EntryPublishing, heartbeats: Heartbeats) -> None:
        self._publishing = publishing
        self._heartbeats = heartbeats

    def identifier_of(self, agent_id: str, given: str) -> str:
        """Return the identifier that the agent gives. Raises ``InvalidParamsError``."""
        if not given:
            raise InvalidParamsError(
                "an agent is listed under an identifier of a domain that it has proved: give "
                '"identifier": "urn:air:<your domain>:agent:<name>" beside "card"'
            )
        return given

    async def publish(
        self, entry: Mapping[str, Any], audience: Any, caller: Caller, address: str
    ) -> Mapping[str, Any]:
        """Publish an entry of the caller's."""
        if audience is not None and not isinstance(audience, list):
            raise InvalidParamsError("audience is a list, such as ['public']")
        options = PublishOptions(audience=None if audience is None else tuple(audience))
        catalog = {"specVersion": "1.0", "entries": [entry]}
        report = await self._publishing.publish(caller, catalog, options, address=address)
        return outcome_of(msgspec.to_builtins(report))

    async def withdraw(self, identifier: str, caller: Caller, address: str) -> None:
        """Withdraw an entry of the caller's."""
        await self._publishing.withdraw(caller, identifier, address=address)

    async def beat(self, identifiers: Sequence[str], caller: Caller) -> Mapping[str, Any]:
        """Note that agents of the caller are alive."""
        answer = await self._heartbeats.beat(caller, identifiers)
        if not answer.alive:
            raise PermissionDeniedError("this caller has published none of these: register first")
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in msgspec.to_builtins(answer).items()
        }
