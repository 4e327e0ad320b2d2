"""The guards of a host's agents in the envelope protocol, and the keys of senders.

Their modules are loaded with the first message: a server that nobody speaks the protocol to does
without.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from parley.engine.description import AgentDescription
from parley.model.envelope.declared import KEYS_VARIABLE
from parley.security.authentication import Authenticator
from parley.security.resources import SchemeResources
from parley.security.signing.keys import SigningKeys
from parley.store.protocols.errors import StoreError
from parley.store.task_store import TaskStore

if TYPE_CHECKING:
    from parley.server.envelope.card import CardTimes
    from parley.server.envelope.guard import EnvelopeGuard
    from parley.server.envelope.identity import KnownCallers
    from parley.server.envelope.keys import EnvelopeKeys, GivenKeys
    from parley.server.envelope.nonces import Nonces

log = logging.getLogger("parley.host")


def read_keys(given: GivenKeys | None) -> EnvelopeKeys | None:
    """Return the keys of senders that an operator gives, or the environment names.

    Raises ``ValueError`` for keys that cannot be used.
    """
    if given is None and not os.environ.get(KEYS_VARIABLE):
        return None
    from parley.server.envelope.keys import EnvelopeKeys

    return EnvelopeKeys.load(given)


class EnvelopeGuards:
    """One guard for each agent that speaks the envelope protocol, made when it is first needed.

    ``names`` are the ids of each agent, by its key. ``identifies``: the server asks a function of
    its own who calls. Raises ``ValueError`` for an agent whose demands nobody could meet.
    """

    def __init__(
        self,
        agents: Iterable[AgentDescription],
        store: TaskStore,
        *,
        keys: EnvelopeKeys | None,
        names: dict[str, tuple[str, ...]],
        authenticator: Authenticator | None,
        identifies: bool,
        resources: SchemeResources,
        signing_keys: SigningKeys | None = None,
    ) -> None:
        self._agents = {agent.key: agent for agent in agents if agent.envelope is not None}
        self._store = store
        self._keys = keys
        self._names = names
        self._resources = resources
        self._authenticator = authenticator
        self._signing_keys = signing_keys
        self._guards: dict[str, EnvelopeGuard] = {}
        self.is_reachable: Callable[[str], bool] | None = None
        self._shared: tuple[KnownCallers, Nonces, CardTimes] | None = None
        for agent in self._agents.values():
            has_keys = keys is not None and bool(keys.owners)
            check_identifiable(agent, identifies=identifies, has_keys=has_keys)

    def of(self, agent: str) -> Callable[[], EnvelopeGuard] | None:
        """Return what gives the guard of an agent, ``None`` if that does not speak the protocol."""
        return partial(self._guard, agent) if agent in self._agents else None

    def _guard(self, key: str) -> EnvelopeGuard:
        guard = self._guards.get(key)
        if guard is None:
            guard = self._guards[key] = self._made(self._agents[key])
        return guard

    def _made(self, agent: AgentDescription) -> EnvelopeGuard:
        from parley.server.envelope.card import CardTimes
        from parley.server.envelope.guard import EnvelopeGuard
        from parley.server.envelope.identity import KnownCallers
        from parley.server.envelope.nonces import Nonces
        from parley.server.envelope.signed_messages import SignedMessages

        store, settings = self._store, agent.envelope
        assert settings is not None
        if self._shared is None:
            self._shared = KnownCallers(self._is_registered), Nonces(store), CardTimes(store)
        known, nonces, times = self._shared
        window = round(settings.signature_window * 1000)
        return EnvelopeGuard(
            settings,
            names=self._names.get(agent.key, (agent.key,)),
            signed=SignedMessages(self._keys, nonces, window=window, now=store.now),
            authorization=agent.authorization,
            known=known,
            failures=self._resources.failures,
            signing_keys=self._signing_keys,
            times=times,
            is_reachable=self.is_reachable,
        )

    async def _is_registered(self, id: str) -> bool:
        """Return whether an id has credentials with this server; yes if that cannot be told."""
        for scheme in () if self._authenticator is None else self._authenticator.schemes:
            try:
                if await scheme.knows(id, self._resources):
                    return True
            except StoreError as error:
                log.warning("it cannot be told whether %s knows a caller: %s", scheme.name, error)
                return True
        return False

    def start(self) -> None:
        """Prepare to fetch keys that senders publish."""
        if self._keys is not None:
            self._keys.start(egress=self._resources.egress, now=self._resources.now)

    async def close(self) -> None:
        """Close the connections for that."""
        if self._keys is not None:
            await self._keys.close()


def check_identifiable(agent: AgentDescription, *, identifies: bool, has_keys: bool) -> None:
    """Refuse demands that no caller could meet. Raises ``ValueError``."""
    settings = agent.envelope
    assert settings is not None
    rights = agent.authorization
    verifies = identifies or (rights is not None and bool(rights.securities))
    if settings.needs_signatures and not has_keys:
        why = "signed=True" if settings.signed else "data_classification='restricted'"
        raise ValueError(
            f"the agent {agent.name!r} takes signed messages only ({why}), and this server has no "
            "key to verify them: give envelope_keys=, --envelope-keys or "
            f"{KEYS_VARIABLE} (`parley keys share` makes a file)"
        )
    if settings.required_permissions and not verifies:
        raise ValueError(
            f"the agent {agent.name!r} has required_permissions "
            f"({', '.join(settings.required_permissions)}), and nothing tells the scopes of "
            "callers: declare Agent(security=...), or give auth= or caller="
        )
    if settings.needs_identity and not (verifies or has_keys):
        raise ValueError(
            f"the data of the agent {agent.name!r} is {settings.data_classification}, and nothing "
            "tells who calls: declare Agent(security=...), or give auth=, caller= or envelope_keys="
        )
