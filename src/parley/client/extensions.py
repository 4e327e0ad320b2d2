"""What a connection does about extensions (specification §4.6)."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from parley.client.calls.service import RemoteService
from parley.extensions.idempotent_send import IdempotentSend
from parley.extensions.message_timestamps import MessageTimestamps
from parley.extensions.profile import Profile, active_uris, with_dependencies
from parley.extensions.resumable_streams import ResumableStreams
from parley.extensions.task_search import TaskSearch
from parley.model.cards import AgentCard, AgentExtension
from parley.model.extensions import (
    IDEMPOTENT_SEND,
    A,
    Extension,
    ExtensionMethod,
    Q,
    collect_extensions,
)
from parley.model.requests import SendMessageRequest
from parley.model.service import CallContext

KNOWN: tuple[Extension, ...] = (
    ResumableStreams(),
    IdempotentSend(),
    TaskSearch(),
    MessageTimestamps(),
)
"""What this client knows by itself: it does as they say where an agent requires them."""


class Activation(msgspec.Struct, frozen=True):
    """The extensions of one connection: the URIs to ask for, and what they add to messages."""

    uris: frozenset[str]
    profile: Profile

    def ask(self, request: SendMessageRequest) -> SendMessageRequest:
        """Return a message as it is to be sent; once for each, so that repeats are the same."""
        return self.profile.ask(request)


def activate(
    card: AgentCard,
    asked: Iterable[Extension | AgentExtension | str],
    *,
    idempotent: bool,
) -> Activation:
    """Return what a connection to an agent does about extensions.

    It asks for ``asked``, with what they depend on, for those that the agent requires and this
    client knows, and for idempotent sends, if wanted, where the agent has them. Only what the
    agent declares is at work in messages; of a URI no other version is tried.
    """
    objects = collect_extensions(asked)
    declared = {extension.uri: extension for extension in card.capabilities.extensions}
    wanted = [extension.uri for extension in objects]
    wanted += [
        known.uri for known in KNOWN if known.uri in declared and declared[known.uri].required
    ]
    if idempotent and IDEMPOTENT_SEND in declared:
        wanted.append(IDEMPOTENT_SEND)
    known = collect_extensions([*KNOWN, *objects])
    uris = with_dependencies(wanted, known)
    active = active_uris((extension for extension in known if extension.uri in declared), uris)
    profile = Profile(extension for extension in known if extension.uri in active)
    return Activation(frozenset(uris), profile)


async def call_method(
    service: RemoteService, method: ExtensionMethod[Q, A], request: Q, context: CallContext
) -> A:
    """Return what a method of an extension answers; the extension is asked for with the call."""
    extensions = context.extensions | {method.operation.extension}
    context = msgspec.structs.replace(context, extensions=extensions)
    answer: A = await service.call(method.operation, request, context)
    return answer
