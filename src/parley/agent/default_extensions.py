"""The extensions that every agent has, and which of them one agent leaves out."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable

from parley.extensions.call_chain import CallChain
from parley.extensions.idempotent_send import IdempotentSend
from parley.extensions.in_task_authorization import InTaskAuthorization
from parley.extensions.installed import with_installed
from parley.extensions.push_delivery import PushDelivery
from parley.extensions.resumable_streams import ResumableStreams
from parley.extensions.skill_schemas import SKILL_SCHEMAS
from parley.extensions.typed_questions import TypedQuestions
from parley.model.cards import AgentExtension
from parley.model.extensions import FILE_TRANSFER, Extension, collect_extensions

log = logging.getLogger("parley.agent")

BUILT_IN: tuple[Extension, ...] = (
    ResumableStreams(),
    IdempotentSend(),
    TypedQuestions(),
    CallChain(),
    InTaskAuthorization(),
    PushDelivery(),
)
"""The extensions of every agent that leaves none out; ``PushDelivery`` needs push notifications."""

OF_SOME = (SKILL_SCHEMAS, FILE_TRANSFER)
"""The URIs of those of agents with typed skills, and of agents on a server that keeps files."""


def default_uris(chosen: bool | Iterable[str]) -> frozenset[str]:
    """Return the URIs of the default extensions that an agent has: all, none, or those ``chosen``.

    Raises ``TypeError`` and ``ValueError`` for anything else.
    """
    known = [*(extension.uri for extension in BUILT_IN), *OF_SOME]
    if isinstance(chosen, bool):
        return frozenset(known if chosen else ())
    if isinstance(chosen, str):
        raise TypeError(
            f"default_extensions is a list of URIs: write default_extensions=[{chosen!r}]"
        )
    if not isinstance(chosen, Iterable):
        raise TypeError(f"default_extensions is True, False or a list of URIs, not {chosen!r}")
    uris = tuple(chosen)
    for uri in uris:
        if uri not in known:
            raise ValueError(
                f"default_extensions names {uri!r}, which is none of them; they are "
                f"{', '.join(known)}. An extension of another kind goes into extensions=[...]"
            )
    return frozenset(uris)


def declared_extensions(
    given: Iterable[Extension | AgentExtension | str], defaults: Collection[str]
) -> tuple[Extension, ...]:
    """Return the extensions of an agent: those ``given``, and of the ``defaults`` the others.

    Raises ``ValueError`` for one that depends on another which the agent does not have.
    """
    built_in = [extension for extension in BUILT_IN if extension.uri in defaults]
    extensions = collect_extensions([*built_in, *with_installed(given)])
    for extension in extensions:
        if extension.required and extension.is_declaration_only:
            log.warning(
                "the extension %r is data on the card alone, and required: callers who do not ask "
                "for it are refused for nothing, so the specification advises against it; leave "
                "required out, or give it behaviour (parley.extensions.Extension)",
                extension.uri,
            )
    uris = {extension.uri for extension in extensions}
    for extension in extensions:
        missing = [uri for uri in extension.depends_on if uri not in uris]
        if missing:
            raise ValueError(
                f"{extension!r} depends on {', '.join(missing)}, which the agent does not have; "
                "give it too"
            )
    return extensions
