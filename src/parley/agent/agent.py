"""An agent: a description, and the functions that are its skills."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

import msgspec

from parley.engine.options import Options
from parley.engine.service.extended_card import ExtendedCard, ExtendedCards
from parley.engine.skill import Replies, Skill, form_of, modes_of, strings_of, takes_of
from parley.extensions.idempotent_send import IdempotentSend
from parley.extensions.resumable_streams import ResumableStreams
from parley.model.cards import (
    AgentCapabilities,
    AgentCard,
    AgentExtension,
    AgentInterface,
    AgentProvider,
)
from parley.model.errors import FieldViolation, InvalidParamsError
from parley.model.extensions import Extension, collect_extensions
from parley.model.parts import Message
from parley.model.service import Caller
from parley.wire.versions import LATEST

if TYPE_CHECKING:
    from parley.server.app import App

F = TypeVar("F", bound=Callable[..., Any])

SKILL_KEY = "skill"
"""The metadata key by which a message names the skill that it is for, by its id."""

log = logging.getLogger("parley.agent")

ANYTHING = ("text/plain", "application/json", "*/*")

OWN = (ResumableStreams(), IdempotentSend())
"""What every agent has."""


class RoutedMessage(msgspec.Struct, frozen=True):
    """What a router decides by. ``caller`` has all claims."""

    message: Message
    metadata: dict[str, Any]
    caller: Caller

    @property
    def text(self) -> str:
        """The message's text."""
        return self.message.text


class Agent:
    """An agent, described for its card and given its skills.

    ``input_modes`` and ``output_modes`` are media types, or ``text``, ``file`` and ``data`` for all
    parts of a kind. With input modes given (here or on a skill), a message with a part of another
    type is refused (a file that names no type is not); without, everything is taken.
    With output modes given, a caller who accepts none of them is refused; ``text/plain`` is what an
    agent gives that says nothing else.
    ``extensions`` are objects that take part in what is said, or declarations for the card alone.
    ``extended_card`` is the card for callers who are known, a mapping of what it has beside the
    public card, or a function of the caller that returns one of them (see ``extended_card``).
    ``key`` is the name under which the agent's tasks are stored; it defaults to the slug of its
    name, so give one before you rename an agent that has tasks.
    ``retention`` is how long tasks are kept after they ended, ``None`` for ever.
    ``input_timeout`` is how
    long a task waits for its caller before it is canceled, ``None`` for ever.
    ``keep_history`` keeps the conversation of each context for ``turn.history()``.
    ``keep_claims`` names the claims of callers that are kept with their messages: ``turn.caller``
    has these, and no others.
    ``streaming`` gives callers events as they come, ``push_notifications`` lets them name webhooks,
    which are told of their tasks.
    The other options are those of ``Options``.

    Raises ``ValueError`` for an option that makes no sense.
    """

    def __init__(
        self,
        name: str,
        *,
        description: str = "",
        version: str = "0.1.0",
        key: str | None = None,
        provider: AgentProvider | None = None,
        documentation_url: str | None = None,
        icon_url: str | None = None,
        input_modes: Iterable[str] = (),
        output_modes: Iterable[str] = ("text/plain",),
        extensions: Iterable[Extension | AgentExtension] = (),
        extended_card: ExtendedCard | None = None,
        retention: timedelta | None = timedelta(days=7),
        input_timeout: timedelta | None = timedelta(days=30),
        direct_reply_timeout: float = 1.0,
        blocking_timeout: float = 300.0,
        stream_until_terminal: bool = False,
        cancel_grace: float = 5.0,
        on_crash: Literal["rerun", "fail"] = "rerun",
        max_attempts: int = 5,
        max_running: int = 1000,
        max_queued: int = 10_000,
        max_waiting_messages: int = 100,
        turn_timeout: timedelta | None = None,
        task_timeout: timedelta | None = None,
        threads: int = 40,
        keep_history: bool = False,
        keep_claims: Iterable[str] = (),
        streaming: bool = True,
        push_notifications: bool = True,
    ) -> None:
        if not name.strip():
            raise ValueError("an agent has a name")
        for name_, span in (("retention", retention), ("input_timeout", input_timeout)):
            if span is not None and span <= timedelta(0):
                raise ValueError(f"{name_} is a positive timedelta, or None for ever")
        if threads < 1:
            raise ValueError("threads is 1 or more")
        self.name = name
        self.description = description
        self.version = version
        self.provider = provider
        self.documentation_url = documentation_url
        self.icon_url = icon_url
        self.input_modes = modes_of(input_modes)
        self.output_modes = modes_of(output_modes) or ("text/plain",)
        self.extensions = _extensions(extensions)
        self.extended_cards = None if extended_card is None else ExtendedCards(extended_card)
        self.retention = retention
        self.input_timeout = input_timeout
        self.threads = threads
        self.streaming = streaming
        self.push_notifications = push_notifications
        self.options = Options(
            direct_reply_timeout=direct_reply_timeout,
            blocking_timeout=blocking_timeout,
            stream_until_terminal=stream_until_terminal,
            cancel_grace=cancel_grace,
            on_crash=on_crash,
            max_attempts=max_attempts,
            max_running=max_running,
            max_queued=max_queued,
            max_waiting_messages=max_waiting_messages,
            turn_timeout=turn_timeout,
            task_timeout=task_timeout,
            keep_history=keep_history,
            keep_claims=strings_of(keep_claims, "keep_claims"),
        )
        self.key = key or slug(name)
        self.skills: dict[str, Skill] = {}
        self._default: Skill | None = None
        self._router: Callable[[RoutedMessage], Any] | None = None

    def __repr__(self) -> str:
        return f"Agent({self.name!r}, skills={list(self.skills)})"

    # -- what an author writes -----------------------------------------------------------------

    @overload
    def skill(self, function: F, /) -> F: ...

    @overload
    def skill(
        self,
        function: None = None,
        /,
        *,
        id: str | None = None,
        name: str | None = None,
        description: str | None = None,
        tags: Iterable[str] = (),
        examples: Iterable[str] = (),
        input_modes: Iterable[str] = (),
        output_modes: Iterable[str] = (),
        replies: Replies | None = None,
        default: bool = False,
    ) -> Callable[[F], F]: ...

    def skill(
        self,
        function: F | None = None,
        /,
        *,
        id: str | None = None,
        name: str | None = None,
        description: str | None = None,
        tags: Iterable[str] = (),
        examples: Iterable[str] = (),
        input_modes: Iterable[str] = (),
        output_modes: Iterable[str] = (),
        replies: Replies | None = None,
        default: bool = False,
    ) -> F | Callable[[F], F]:
        """Make a function a skill; use it as a decorator.

        The id defaults to the function's name, the description to its docstring. ``replies``
        settles how it answers: ``"message"`` always directly, ``"task"`` always with a task, which
        is durable before the function runs. Without it the function decides by what it does.
        ``default`` makes it the skill of messages that name none.

        Raises ``ValueError`` and ``TypeError`` for what cannot work.
        """

        def register(target: F) -> F:
            self._register(
                target,
                id=id,
                name=name,
                description=description,
                tags=strings_of(tags, "tags"),
                examples=strings_of(examples, "examples"),
                input_modes=modes_of(input_modes),
                output_modes=modes_of(output_modes),
                replies=replies,
                default=default,
            )
            return target

        return register if function is None else register(function)

    def _register(
        self,
        function: Callable[..., Any],
        *,
        id: str | None,
        name: str | None,
        description: str | None,
        replies: Replies | None,
        default: bool,
        **described: tuple[str, ...],
    ) -> None:
        if not callable(function):
            raise TypeError(f"a skill is a function, not {function!r}")
        called = getattr(function, "__name__", type(function).__name__)
        skill_id = id or called
        if skill_id in self.skills:
            raise ValueError(f"the agent {self.name!r} has a skill {skill_id!r} already")
        if replies not in (None, "message", "task"):
            raise ValueError(f"replies is 'message', 'task' or None, not {replies!r}")
        form = form_of(function)
        if replies == "message" and form.streams:
            raise TypeError(
                f"the skill {skill_id!r} yields, which needs a task; replies='message' cannot be"
            )
        if default and any(skill.default for skill in self.skills.values()):
            raise ValueError(f"the agent {self.name!r} has a default skill already")
        self._default = None
        documented = description if description is not None else inspect.getdoc(function) or ""
        self.skills[skill_id] = Skill(
            id=skill_id,
            name=name or called.replace("_", " ").strip().capitalize(),
            description=documented or self.description or skill_id,
            replies=replies,
            default=default,
            function=function,
            form=form,
            takes=takes_of(function),
            tags=described["tags"] or (self.key,),
            examples=described["examples"],
            input_modes=described["input_modes"],
            output_modes=described["output_modes"],
        )

    def router(self, function: F) -> F:
        """Make a function choose the skill: it takes a ``RoutedMessage`` and returns a skill's id.

        It is asked for messages that name no skill in their metadata (``"skill"``). ``None`` means
        the default skill. A plain ``def`` runs in a thread. Use it as a decorator.

        Raises ``TypeError`` for what is no function, or yields.
        """
        if not callable(function) or form_of(function).streams:
            raise TypeError(f"a router is a function that returns a skill's id, not {function!r}")
        if self._router is not None:
            raise ValueError(f"the agent {self.name!r} has a router already")
        self._router = function
        return function

    @property
    def extended_card(self) -> Callable[[F], F]:
        """Make a function give the card that callers see whom the agent knows; a decorator.

        It takes the caller, or the caller and the public card, and returns an ``AgentCard``, or a
        mapping of what is different: skills are added to the public ones, other fields replaced.
        ``None`` means that there is no extended card for this caller. Such a card, or such a
        mapping, can be set as well.
        """

        def register(function: F) -> F:
            self.extended_card = function
            return function

        return register

    @extended_card.setter
    def extended_card(self, source: ExtendedCard) -> None:
        self.extended_cards = ExtendedCards(source)

    # -- which skill -----------------------------------------------------------------------------

    def pick(self, message: Message, metadata: Mapping[str, Any] | None) -> Skill | None:
        """Return the skill of a message, or nothing when the router is to be asked.

        Raises ``InvalidParamsError`` when the message names a skill that there is none of.
        """
        wanted = (message.metadata or {}).get(SKILL_KEY)
        if wanted is None and metadata:
            wanted = metadata.get(SKILL_KEY)
        if wanted is not None:
            skill = self.skills.get(wanted) if isinstance(wanted, str) else None
            if skill is None:
                raise InvalidParamsError(
                    f"this agent has no skill {str(wanted)[:100]!r}; "
                    f"it has {', '.join(self.skills)}",
                    violations=(
                        FieldViolation(
                            f"message.metadata.{SKILL_KEY}", f"one of {', '.join(self.skills)}"
                        ),
                    ),
                )
            return skill
        return self.default_skill if self._router is None else None

    async def route(
        self,
        message: Message,
        metadata: Mapping[str, Any] | None,
        caller: Caller,
        in_thread: Callable[..., Awaitable[Any]],
    ) -> Skill:
        """Return the skill that the router chooses; ``in_thread`` calls one that could block."""
        assert self._router is not None
        asked = RoutedMessage(message, dict(metadata or {}), caller)
        if form_of(self._router).in_thread:
            chosen = await in_thread(self._router, asked)
        else:
            chosen = self._router(asked)
        if inspect.isawaitable(chosen):
            chosen = await chosen
        if chosen is None:
            return self.default_skill
        if chosen not in self.skills:
            raise RuntimeError(
                f"the router of {self.name!r} chose {chosen!r}; there are {list(self.skills)}"
            )
        return self.skills[chosen]

    @property
    def default_skill(self) -> Skill:
        """The skill of messages that name none: the one declared so, else the first."""
        if not self.skills:
            raise ValueError(
                f"the agent {self.name!r} has no skill; decorate a function with @agent.skill"
            )
        if self._default is None:
            first = next(iter(self.skills.values()))
            self._default = next((s for s in self.skills.values() if s.default), first)
        return self._default

    # -- the card, the app -----------------------------------------------------------------------

    def card(self, at: str | tuple[AgentInterface, ...]) -> AgentCard:
        """Return the card of the agent: at an address that takes JSON-RPC, or at interfaces."""
        if isinstance(at, str):
            at = (AgentInterface(url=at, protocol_binding="JSONRPC", protocol_version=LATEST),)
        return AgentCard(
            name=self.name,
            description=self.description or self.default_skill.description,
            supported_interfaces=at,
            provider=self.provider,
            version=self.version,
            documentation_url=self.documentation_url,
            icon_url=self.icon_url,
            capabilities=AgentCapabilities(
                streaming=self.streaming,
                push_notifications=self.push_notifications,
                extended_agent_card=self.extended_cards is not None,
                extensions=tuple(extension.declared() for extension in self.extensions),
            ),
            default_input_modes=self.input_modes or ANYTHING,
            default_output_modes=self.output_modes,
            skills=tuple(skill.described for skill in self.skills.values()),
        )

    def asgi(self, **options: Any) -> App:
        """Return the agent as an ASGI app, for a server of your own or to mount under a prefix.

        Takes the options of ``parley.asgi``.
        """
        from parley.host.host import asgi

        return asgi(self, **options)


def slug(name: str) -> str:
    """Return a name as it can stand in a path."""
    return re.sub(r"[^\w]+", "-", name.lower()).strip("-_") or "agent"


def _extensions(given: Iterable[Extension | AgentExtension]) -> tuple[Extension, ...]:
    extensions = collect_extensions([*OWN, *given])
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
