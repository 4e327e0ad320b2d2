"""The values about a handoff that an author's function returns and reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from parley.model.encoding import decode, encode
from parley.model.parts import Message

HANDOFF_KEY = "urn:parley:handoff:v1"
"""Names handoffs in the metadata of messages and statuses, and in the state of a context."""

MAX_NOTE = 10_000
"""How many characters a note may have."""

MAX_HISTORY = 20
"""How many messages of a conversation go to the other agent, at most."""

MAX_HISTORY_BYTES = 64 * 1024
"""How large these messages may be together; the oldest are left out."""


class Handoff:
    """A conversation is another agent's from now on, or goes back: ``handoff`` makes it."""

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
    """Return a value that gives the conversation to another agent when a skill returns it.

    ``to`` is one of the agents that ``Agent(handoffs=[...])`` declares. It answers this message,
    and all later messages of this context, until it hands the conversation back. ``note`` is for
    that agent, ``say`` for the caller (by default a sentence that names the agent, ``""`` for
    none), ``skill`` the skill that the first message goes to. With ``history=False`` the
    conversation so far, which ``Agent(keep_history=True)`` keeps, does not go along.

    ``handoff(back=True)`` returns the conversation to the agent that handed it over. With
    ``answer`` the caller gets that, and the other agent the next message; without, the other agent
    answers this message.

    Raises ``ValueError`` unless there is either ``to`` or ``back``.
    """
    if (to is None) != back:
        raise ValueError(
            "handoff(to=agent) gives the conversation to an agent, handoff(back=True) returns it: "
            "give one of them"
        )
    if back and (skill or say is not None):
        raise ValueError("handoff(back=True) takes answer= and note=; say= and skill= go with to=")
    if not back and answer is not None:
        raise ValueError(
            "the agent that gets the conversation answers this message: give it a note=, or "
            "tell the caller with say=; answer= goes with back=True"
        )
    if len(note) > MAX_NOTE:
        raise ValueError(f"a note has {MAX_NOTE} characters at most, not {len(note)}")
    return Handoff(
        to=to, note=note, say=say, skill=skill, history=history, back=back, answer=answer
    )


class HandedConversation(msgspec.Struct, frozen=True, kw_only=True):
    """How a conversation reached this agent (``turn.handoff``).

    ``sender`` is the name of the agent that handed it over, or back (``is_back``). ``note`` is what
    it said, ``history`` the conversation so far if that agent keeps it, the oldest first. It is as
    trustworthy as the caller of the turn, who sent it.
    """

    sender: str = ""
    note: str = ""
    is_back: bool = False
    history: tuple[Message, ...] = ()

    @classmethod
    def of(cls, message: Message) -> HandedConversation | None:
        """Return what a message says of its handoff; ``None`` if it says nothing readable."""
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
            history=read[-MAX_HISTORY:],
        )


def back_in(metadata: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return the marker by which an answer hands the conversation back, if it has one."""
    value = (metadata or {}).get(HANDOFF_KEY)
    return value if isinstance(value, Mapping) and value.get("back") is True else None
