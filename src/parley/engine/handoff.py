"""Handoffs of conversations: an author's values, the state of a context, and the log records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any

import msgspec

from parley.model.parts import Message
from parley.model.struct import decode, encode
from parley.store.events import Scope
from parley.store.task_store import TaskStore

HANDOFF_KEY = "urn:parley:handoff:v1"
"""The key of handoffs in the metadata of messages and statuses, and in the state of a context."""

MAX_NOTE_CHARACTERS = 10_000
"""The maximum number of characters in a note."""

MAX_HISTORY_MESSAGES = 20
"""The maximum number of a conversation's messages that are sent to the other agent."""

MAX_HISTORY_BYTES = 64 * 1024
"""The maximum size of these messages together; the oldest are left out."""


class Handoff:
    """A handoff of a conversation to another agent, or back. Made by ``handoff``."""

    __slots__ = ("answer", "back", "history", "note", "say", "skill", "to")

    def __init__(
        self,
        *,
        to: Any,
        note: str,
        say: str | None,
        skill: str,
        history: bool,
        back: bool,
        answer: Any,
    ) -> None:
        self.to = to
        self.note = note
        self.say = say
        self.skill = skill
        self.history = history
        self.back = back
        self.answer = answer


def handoff(
    to: Any = None,
    *,
    note: str = "",
    say: str | None = None,
    skill: str = "",
    history: bool = True,
    back: bool = False,
    answer: Any = None,
) -> Handoff:
    """Return a value that hands the conversation over when a skill returns it.

    ``to`` is an agent that ``Agent(handoffs=[...])`` declares. It answers this message, and all
    later messages of this context, until it hands the conversation back. ``note`` is for that
    agent, ``say`` for the caller (by default a sentence that names the agent; ``""`` for none),
    ``skill`` is the skill for the first message. With ``history=False`` the conversation so far,
    which ``Retention(history=True)`` keeps, is not sent.

    ``handoff(back=True)`` returns the conversation to the agent that handed it over. With
    ``answer`` the caller gets this answer, and the other agent gets the next message; otherwise the
    other agent answers this message.

    Raises ``ValueError`` unless there is either ``to`` or ``back``.
    """
    if (to is None) != back:
        raise ValueError(
            "handoff(to=agent) gives the conversation to an agent, handoff(back=True) returns it: "
            "give either"
        )
    if back and (skill or say is not None):
        raise ValueError("handoff(back=True) takes answer= and note=; say= and skill= go with to=")
    if not back and answer is not None:
        raise ValueError(
            "the agent that gets the conversation answers this message: give it a note=, or "
            "tell the caller with say=; answer= goes with back=True"
        )
    if len(note) > MAX_NOTE_CHARACTERS:
        raise ValueError(f"a note has {MAX_NOTE_CHARACTERS} characters at most, not {len(note)}")
    return Handoff(
        to=to, note=note, say=say, skill=skill, history=history, back=back, answer=answer
    )


class HandedConversation(msgspec.Struct, frozen=True, kw_only=True):
    """The way in which a conversation reached this agent (``turn.handoff``).

    ``sender`` is the name of the agent that handed it over, or back (``is_back``). ``note`` is that
    agent's note, ``history`` the conversation so far if that agent keeps it, the oldest message
    first. All of this is as trustworthy as the caller of the turn, who sent it.
    """

    sender: str = ""
    note: str = ""
    is_back: bool = False
    history: tuple[Message, ...] = ()

    @classmethod
    def of(cls, message: Message) -> HandedConversation | None:
        """Return the handoff in a message's metadata; ``None`` if there is none or it is
        malformed."""
        value = (message.metadata or {}).get(HANDOFF_KEY)
        if not isinstance(value, Mapping):
            return None
        sender, note, history = (value.get(name) for name in ("from", "note", "history"))
        try:
            read = decode(encode(history), tuple[Message, ...]) if history else ()
        except (msgspec.MsgspecError, TypeError):
            read = ()
        return cls(
            sender=sender if isinstance(sender, str) else "",
            note=note if isinstance(note, str) else "",
            history=read[-MAX_HISTORY_MESSAGES:],
        )


def back_in(metadata: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return the marker in an answer that hands the conversation back, if there is one."""
    value = (metadata or {}).get(HANDOFF_KEY)
    return value if isinstance(value, Mapping) and value.get("back") is True else None


MAX_TASKS = 20
"""The number of a conversation's tasks that are mapped to the other agent's tasks."""

MAX_CONTEXTS = 20
"""The number of other agents whose contexts a conversation remembers."""


class Handoffs(msgspec.Struct, frozen=True, kw_only=True):
    """The agents to which an agent may hand conversations over, and limits
    (``Agent(handoffs=...)``).

    ``to`` are agents of this process, addresses and cards, or ``part(address, bearer=...)``.
    ``any_address`` allows every address that the server's egress policy allows. After ``lasts`` a
    conversation returns automatically; ``None`` is never. ``most`` is the maximum number of
    handoffs of one message. ``timeout`` is the time (s) for an answer of the other agent.
    """

    to: tuple[object, ...] = ()
    any_address: bool = False
    lasts: timedelta | None = timedelta(days=7)
    most: int = 4
    timeout: float | None = None

    def __post_init__(self) -> None:
        if not (self.to or self.any_address):
            raise ValueError(
                "handoffs names the agents that may get a conversation: handoffs=[billing, "
                '"https://support.example.com"]; any_address=True allows every address'
            )
        if self.lasts is not None and self.lasts <= timedelta(0):
            raise ValueError("lasts is a positive timedelta, or None for ever")
        if self.most < 1:
            raise ValueError("most is 1 or more: the maximum number of handoffs of one message")
        if self.timeout is not None and self.timeout <= 0:
            raise ValueError("timeout is a positive number of seconds, or None")


def declared(handoffs: Iterable[object] | Handoffs) -> Handoffs | None:
    """Return the handoffs of ``Agent(handoffs=...)``, ``None`` for an agent without handoffs.

    Raises ``TypeError`` for a single agent or address.
    """
    if isinstance(handoffs, Handoffs):
        return handoffs
    if isinstance(handoffs, str) or not isinstance(handoffs, Iterable):
        raise TypeError(f"handoffs is a list of agents and addresses, such as [{handoffs!r}]")
    to = tuple(handoffs)
    return Handoffs(to=to) if to else None


class Holding(msgspec.Struct, frozen=True, omit_defaults=True):
    """The agent that answers a conversation: one value of the context, under ``HANDOFF_KEY``.

    ``to`` is the other agent's key or address, empty if this agent answers. ``revision`` counts the
    changes. ``contexts`` are the other agents' contexts, ``tasks`` their tasks by this agent's.
    """

    to: str = ""
    name: str = ""
    revision: int = 0
    at: int = 0
    contexts: dict[str, str] = {}
    tasks: dict[str, tuple[str, str]] = {}


class HandedOver(msgspec.Struct, frozen=True, omit_defaults=True):
    """The log record of a message for another agent. ``to`` is empty if this agent answers.

    ``revision`` is the context's after the handoff. ``is_new``: this message caused the handoff,
    with ``note``, ``say``, ``skill`` and, if requested, ``history``.
    """

    to: str = ""
    name: str = ""
    revision: int = 0
    is_new: bool = False
    note: str = ""
    say: str | None = None
    skill: str = ""
    history: bool = True


async def holding(store: TaskStore, scope: Scope, context_id: str) -> Holding:
    """Return the state of a conversation's handoff. Raises ``StoreError``."""
    return _read(await store.get_value(scope, context_id, HANDOFF_KEY))


async def is_handed_over(store: TaskStore, scope: Scope, context_id: str) -> bool:
    """Return whether another agent answers a conversation now. Raises ``StoreError``."""
    return bool((await holding(store, scope, context_id)).to)


async def change(
    store: TaskStore, scope: Scope, context_id: str, function: Callable[[Holding], Holding | None]
) -> None:
    """Change the agent that answers a conversation, atomically. ``None`` changes nothing.

    Raises ``StoreError``.
    """
    while True:
        found = await store.get_value(scope, context_id, HANDOFF_KEY)
        changed = function(_read(found))
        if changed is None:
            return
        data = msgspec.json.encode(changed)
        if await store.compare_and_set(scope, context_id, HANDOFF_KEY, found, data):
            return


def _read(value: bytes | None) -> Holding:
    return Holding() if value is None else msgspec.json.decode(value, type=Holding)
