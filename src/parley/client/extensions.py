"""The extensions of one connection (specification §4.6)."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from parley.client.calls.service import RemoteService
from parley.extensions.call_chain import CallChain
from parley.extensions.declared import IdempotentSend, SkillSchemas
from parley.extensions.installed import with_installed
from parley.extensions.message_timestamps import MessageTimestamps
from parley.extensions.profile import Profile, active_uris, with_dependencies
from parley.extensions.push_delivery import PushDelivery
from parley.extensions.questions import InTaskAuthorization, TypedQuestions
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
from parley.model.operations import SendMessageRequest
from parley.model.service import CallContext

SUPPORTED: tuple[Extension, ...] = (
    ResumableStreams(),
    IdempotentSend(),
    CallChain(),
    TaskSearch(),
    PushDelivery(),
    MessageTimestamps(),
    SkillSchemas(),
    TypedQuestions(),
    InTaskAuthorization(),
)
"""The extensions that the client supports itself: requested if the agent requires them."""


class Activation(msgspec.Struct, frozen=True):
    """The extensions of one connection: the URIs to request, and their additions to messages."""

    uris: frozenset[str]
    profile: Profile

    def apply(self, request: SendMessageRequest) -> SendMessageRequest:
        """Return the request to send. Call it once per message, so that repeats are equal."""
        return self.profile.ask(request)


def activate(
    card: AgentCard, asked: Iterable[Extension | AgentExtension | str], *, idempotent: bool
) -> Activation:
    """Return the extensions of a connection to an agent.

    The requested extensions are ``asked`` with their dependencies, the extensions that the agent
    requires and the client supports, and idempotent sends, if wanted and declared. Only extensions
    that the agent declares change messages. No other version of a URI is tried.
    """
    objects = collect_extensions(
        each.for_agent(card) for each in collect_extensions(with_installed(asked))
    )
    declared = {extension.uri: extension for extension in card.capabilities.extensions}
    wanted = [extension.uri for extension in objects]
    wanted += [
        each.uri for each in SUPPORTED if each.uri in declared and declared[each.uri].required
    ]
    if idempotent and IDEMPOTENT_SEND in declared:
        wanted.append(IDEMPOTENT_SEND)
    known = collect_extensions([*SUPPORTED, *objects])
    uris = with_dependencies(wanted, known)
    active = active_uris((extension for extension in known if extension.uri in declared), uris)
    profile = Profile(extension for extension in known if extension.uri in active)
    return Activation(frozenset(uris), profile)


async def call_method(
    service: RemoteService, method: ExtensionMethod[Q, A], request: Q, context: CallContext
) -> A:
    """Call a method of an extension, requesting the extension with the call."""
    extensions = context.extensions | {method.operation.extension}
    context = msgspec.structs.replace(context, extensions=extensions)
    answer: A = await service.call(method.operation, request, context)
    return answer
