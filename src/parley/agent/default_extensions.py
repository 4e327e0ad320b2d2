"""The extensions that every agent has, and which of them one agent leaves out."""

from __future__ import annotations

from collections.abc import Iterable

from parley.extensions.call_chain import CallChain
from parley.extensions.idempotent_send import IdempotentSend
from parley.extensions.in_task_authorization import InTaskAuthorization
from parley.extensions.resumable_streams import ResumableStreams
from parley.extensions.skill_schemas import SKILL_SCHEMAS
from parley.extensions.typed_questions import TypedQuestions
from parley.model.extensions import FILE_TRANSFER, Extension

BUILT_IN: tuple[Extension, ...] = (
    ResumableStreams(),
    IdempotentSend(),
    TypedQuestions(),
    CallChain(),
    InTaskAuthorization(),
)
"""The extensions of every agent that leaves none out."""

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
