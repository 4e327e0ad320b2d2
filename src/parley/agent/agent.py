"""An agent: a description, and the functions that are its skills."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar, overload

from parley.agent.blocking_turn import BlockingTurn
from parley.agent.lifespan import checked_lifespan
from parley.agent.turn import Turn
from parley.agent.uses import UsableAgent, checked_uses
from parley.engine.agent_options import (
    NO_RULES,
    AgentRules,
    CardDetails,
    Execution,
    ExtendedCard,
    Retention,
    Rights,
    checked_settings,
)
from parley.engine.content import takes as takes_part
from parley.engine.description import AgentDescription, ExtendedCards
from parley.engine.handoff import Handoffs, declared
from parley.engine.routing import RoutedMessage, schemas_of
from parley.engine.skill import (
    InvalidInput,
    Replies,
    Skill,
    default_skill,
    form_of,
    modes_of,
    strings_of,
)
from parley.engine.typed.function import parameters_of, result_of
from parley.engine.typed.inputs import Inputs
from parley.extensions.call_chain import CallChain
from parley.extensions.declared import SKILL_SCHEMAS, IdempotentSend, SkillSchemas
from parley.extensions.installed import with_installed
from parley.extensions.push_delivery import PushDelivery
from parley.extensions.questions import InTaskAuthorization, TypedQuestions
from parley.extensions.resumable_streams import ResumableStreams
from parley.model.cards import AgentCapabilities, AgentCard, AgentExtension, AgentInterface
from parley.model.extensions import FILE_TRANSFER, PUSH_DELIVERY, Extension, collect_extensions
from parley.model.operations import OPERATIONS
from parley.model.parts import Part
from parley.security.authorization import FILE_OPERATIONS, Authorization, checked_policy
from parley.security.disclosure import InterfaceListings, Listed, Listing, listing_of
from parley.security.limits.declaration import Limit, SizeLimit, parse_limits
from parley.security.owner import owner_policy
from parley.security.schemes.scheme import Scheme, Security, card_schemes, security_of
from parley.wire.versions import LATEST, SUPPORTED_VERSIONS

G = TypeVar("G")
F = TypeVar("F", bound=Callable[..., Any])

ANY_MODES = ("text/plain", "application/json", "*/*")
"""The input modes on the card of an agent that declares none."""


class Agent(UsableAgent):
    """The card of an agent, its skills and its options.

    ``input_modes`` and ``output_modes`` are media types, or ``text``, ``file`` and ``data`` for all
    parts of a kind. A message with a part that matches no input mode (of the skill, or of the
    agent) is rejected, except for files without a type; without input modes every part is accepted.
    A caller who accepts none of the output modes is rejected. ``extensions`` change messages and
    events, or are only declared on the card; a name stands for an extension of an installed package
    (entry-point group ``parley.extensions``). ``card`` has further card members and features
    (``CardDetails``). The agent's tasks are stored under ``key``, by default the slug of its name:
    set a key before you rename an agent that has tasks. ``retention`` decides which data is kept,
    and for how long (``Retention``); ``execution`` configures the running of turns (``Execution``).

    ``security`` is the requirement for callers: a scheme of ``parley.security``, or several,
    combined with ``&`` and ``|``. The server verifies it, and the card declares it. ``rights``
    limits authenticated callers, and decides who owns tasks (``Rights``). ``limits`` bounds the
    usage of callers, such as ``["60/minute per caller"]``; see ``docs/reference/limits.md``.
    ``lifespan`` is a function that takes the agent and returns an async context manager: it is
    entered before turns run and left after they have ended, and its value is ``turn.state``.
    ``uses`` are agents of this process that this agent's turns call (``turn.delegate(other)``):
    they run on the same server, and have an address of their own only if they are served too.
    ``handoffs`` are the agents to which skills may hand conversations over, by
    ``parley.compose.handoff``.

    Raises ``ValueError`` for an invalid option.
    """

    def __init__(
        self,
        name: str,
        *,
        description: str = "",
        version: str = "0.1.0",
        key: str | None = None,
        card: CardDetails | None = None,
        input_modes: Iterable[str] = (),
        output_modes: Iterable[str] = ("text/plain",),
        extensions: Iterable[Extension | AgentExtension | str] = (),
        security: Scheme | Security | None = None,
        rights: Rights | None = None,
        limits: Iterable[str] = (),
        retention: Retention | None = None,
        execution: Execution | None = None,
        lifespan: Callable[[Agent], AbstractAsyncContextManager[Any]] | None = None,
        uses: Iterable[UsableAgent] = (),
        handoffs: Iterable[object] | Handoffs = (),
    ) -> None:
        if not name.strip():
            raise ValueError("an agent has a name")
        self.name = name
        self.description = description
        self.version = version
        self.details = details = _grouped(CardDetails, "card", card)
        self.input_modes = modes_of(input_modes)
        self.output_modes = modes_of(output_modes) or ("text/plain",)
        self.default_extensions = default_uris(details.default_extensions)
        defaults = self.default_extensions
        if not details.push_notifications:
            defaults = defaults - {PUSH_DELIVERY}
        self.extensions = declared_extensions(extensions, defaults)
        extended = details.extended_card
        self.extended_cards = None if extended is None else ExtendedCards(extended)
        self.retention = _grouped(Retention, "retention", retention)
        self.execution = _grouped(Execution, "execution", execution)
        self.lifespan = None if lifespan is None else checked_lifespan(lifespan)
        self.security = None if security is None else security_of(security, "security")
        rights = _grouped(Rights, "rights", rights)
        self.operation_security = self._operations(rights.operations)
        self.policy = None if rights.policy is None else checked_policy(rights.policy)
        self.owner = owner_policy(rights.owner)
        self.listed_interfaces = InterfaceListings.of(details.listed_interfaces, SUPPORTED_VERSIONS)
        self.limits = parse_limits(limits, operations=self._method_names)
        self.envelope = checked_settings(details.envelope)
        self.handoffs = declared(handoffs)
        self.key = key or slug(name)
        self.uses = checked_uses(name, uses, () if self.handoffs is None else self.handoffs.to)
        self.skills: dict[str, Skill] = {}
        self._is_served = False
        self._router: Callable[[RoutedMessage], Any] | None = None

    def __repr__(self) -> str:
        return f"Agent({self.name!r}, skills={list(self.skills)})"

    # -- skills --------------------------------------------------------------------------------

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
        invalid_input: InvalidInput = "refuse",
        default: bool = False,
        security: Scheme | Security | None = None,
        listed: Listed = True,
        limits: Iterable[str] = (),
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
        invalid_input: InvalidInput = "refuse",
        default: bool = False,
        security: Scheme | Security | None = None,
        listed: Listed = True,
        limits: Iterable[str] = (),
    ) -> F | Callable[[F], F]:
        """Make a function a skill; use it as a decorator.

        The id defaults to the function's name, the description to its docstring. ``replies`` fixes
        the kind of reply: ``"message"`` is always direct, ``"task"`` is always a task, durable
        before the function runs. Without it, the behaviour of the function decides.
        ``invalid_input`` decides about a message that does not fit typed parameters: ``"refuse"``
        returns an error and creates no task, ``"ask"`` creates a task that asks for missing and
        wrong values. ``default`` makes it the skill of messages that name none. ``security`` is a
        requirement for callers of this skill, in addition to the agent's. ``limits`` bounds the
        usage of the skill, such as ``["10/minute per caller"]``.

        ``listed`` limits who sees the skill: everyone (``True``), the callers who get the extended
        card and meet its ``security`` (``"extended"``), such callers for whom a function of the
        caller returns ``True``, or no caller (``False``). For callers who may not see or use it,
        the skill does not exist.

        Raises ``ValueError`` and ``TypeError`` for an invalid skill, and ``RuntimeError`` when the
        agent is already served.
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
                invalid_input=invalid_input,
                default=default,
                security=None if security is None else security_of(security, "security"),
                listing=listing_of(listed, "listed"),
                limits=parse_limits(limits, skill=id or str(getattr(target, "__name__", ""))),
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
        invalid_input: InvalidInput,
        default: bool,
        security: Security | None,
        listing: Listing,
        limits: tuple[Limit, ...],
        **described: tuple[str, ...],
    ) -> None:
        self._check_not_served("skills")
        if not callable(function):
            raise TypeError(f"a skill is a function, not {function!r}")
        function_name = getattr(function, "__name__", type(function).__name__)
        skill_id = id or function_name
        if skill_id in self.skills:
            raise ValueError(f"the agent {self.name!r} has a skill {skill_id!r} already")
        if replies not in (None, "message", "task"):
            raise ValueError(f"replies is 'message', 'task' or None, not {replies!r}")
        form = form_of(function)
        takes, inputs = parameters_of(function, (Turn, BlockingTurn))
        schema = inputs.schema if inputs is not None else None
        if invalid_input not in ("refuse", "ask"):
            raise ValueError(f"invalid_input is 'refuse' or 'ask', not {invalid_input!r}")
        if invalid_input == "ask" and schema is None:
            raise ValueError(
                f"the skill {skill_id!r} has no typed parameters, so no input is invalid; leave "
                "invalid_input out, or give its parameters types"
            )
        if invalid_input == "ask" and replies == "message":
            raise ValueError(
                f"the skill {skill_id!r} asks for missing input, which needs a task; "
                "replies='message' cannot be"
            )
        result = None if form.streams else result_of(function)
        if replies == "message" and form.streams:
            raise TypeError(
                f"the skill {skill_id!r} yields, which needs a task; replies='message' cannot be"
            )
        if default and any(skill.default for skill in self.skills.values()):
            raise ValueError(f"the agent {self.name!r} has a default skill already")
        if default and not listing.is_public:
            raise ValueError(
                f"the skill {skill_id!r} is the default, which answers messages that name no "
                "skill, so all callers may see it: leave listed out, or default"
            )
        if description is None:
            description = inspect.getdoc(function)
        self.skills[skill_id] = Skill(
            id=skill_id,
            name=name or function_name.replace("_", " ").strip().capitalize(),
            description=description or self.description or skill_id,
            replies=replies,
            default=default,
            function=function,
            form=form,
            takes=takes,
            inputs=inputs,
            result=result,
            invalid_input=invalid_input,
            security=security,
            listing=listing,
            limits=limits,
            tags=described["tags"] or (self.key,),
            examples=described["examples"],
            input_modes=described["input_modes"]
            or (() if inputs is None else self._typed_input_modes(inputs)),
            output_modes=described["output_modes"]
            or (() if result is None else self._data_output_modes()),
        )
        if schema is not None:
            _check_takes_data(self.skills[skill_id])

    def _typed_input_modes(self, inputs: Inputs) -> tuple[str, ...]:
        """Return the modes of a skill with typed parameters that declares none."""
        if inputs.schema is None or (inputs.takes_turn and not self.input_modes):
            return ()
        others = self.input_modes if inputs.takes_turn else ("text/plain",)
        return ("application/json", *(mode for mode in others if mode != "application/json"))

    def _data_output_modes(self) -> tuple[str, ...]:
        """Return the modes of a skill that returns data and declares no modes."""
        others = (mode for mode in self.output_modes if mode != "application/json")
        return ("application/json", *others)

    def router(self, function: F) -> F:
        """Make a function the router: it takes a ``RoutedMessage`` and returns a skill's id.

        It is called for messages that name no skill in their metadata (``"skill"``). ``None`` means
        the default skill. A plain ``def`` runs in a thread. Use it as a decorator.

        Raises ``TypeError`` for a generator, and for an object that is not a function.
        """
        self._check_not_served("router")
        if not callable(function) or form_of(function).streams:
            raise TypeError(f"a router is a function that returns a skill's id, not {function!r}")
        if self._router is not None:
            raise ValueError(f"the agent {self.name!r} has a router already")
        self._router = function
        return function

    @property
    def extended_card(self) -> Callable[[F], F]:
        """A decorator: the function returns the extended card of a caller.

        It takes the caller, or the caller and the public card. It returns an ``AgentCard``, or a
        mapping of differences: skills are added to the public ones, other fields are replaced.
        ``None`` means no extended card for this caller. A card or a mapping can be assigned too.
        """

        def register(function: F) -> F:
            self.extended_card = function
            return function

        return register

    @extended_card.setter
    def extended_card(self, source: ExtendedCard) -> None:
        self._check_not_served("extended card")
        self.extended_cards = ExtendedCards(source)

    def _check_not_served(self, what: str) -> None:
        if self._is_served:
            raise RuntimeError(
                f"the agent {self.name!r} is served already, without later additions; "
                f"declare its {what} before parley.asgi(agent) or parley.serve(agent)"
            )

    @property
    def default_skill(self) -> Skill:
        """The skill of messages that name none. Raises ``ValueError`` without a skill."""
        if not self.skills:
            raise ValueError(
                f"the agent {self.name!r} has no skill; decorate a function with @agent.skill"
            )
        return default_skill(self.skills)

    @property
    def _declared(self) -> tuple[Extension, ...]:
        """The extensions on the public card: with the schemas of its typed skills, if any."""
        listed = [skill for skill in self.skills.values() if skill.listing.is_public]
        schemas = schemas_of(listed)
        if not schemas or not self._declares_schemas:
            return self.extensions
        return (*self.extensions, SkillSchemas.of_skills(schemas))

    @property
    def _declares_schemas(self) -> bool:
        """True if cards have the schemas of typed skills."""
        is_given = any(extension.uri == SKILL_SCHEMAS for extension in self.extensions)
        return SKILL_SCHEMAS in self.default_extensions and not is_given

    # -- for the server ------------------------------------------------------------------------

    def describe(self) -> AgentDescription:
        """Return the agent's description for the engine. From now on no skills can be added.

        Raises ``ValueError`` without a skill.
        """
        if not isinstance(self.envelope, bool):
            self.envelope.check_skills(self.skills)
        description = AgentDescription(
            key=self.key,
            card=self.card(()),
            skills=dict(self.skills),
            default_skill=self.default_skill,
            router=self._router,
            input_modes=self.input_modes,
            extended_cards=self.extended_cards,
            extensions=self._declared,
            execution=self.execution,
            retention=self.retention,
            transfers_files=FILE_TRANSFER in self.default_extensions,
            authorization=self._authorization,
            owner=self.owner,
            declares_schemas=self._declares_schemas,
            interfaces=self.listed_interfaces,
            limits=self._all_limits,
            envelope=self.envelope,
            rules=self.rules,
            handoffs=self.handoffs,
        )
        self._is_served = True
        return description

    @property
    def rules(self) -> AgentRules:
        """The rules that a binding's settings declare for all bindings."""
        return NO_RULES if isinstance(self.envelope, bool) else self.envelope.rules

    @property
    def _method_names(self) -> list[str]:
        return [each.operation.name for e in self.extensions for each in e.methods]

    @property
    def _all_limits(self) -> tuple[Limit, ...]:
        """The limits of the agent and of its skills. Raises ``ValueError`` for unknown skills."""
        for limit in self.limits:
            named = () if isinstance(limit, SizeLimit) else limit.applies.skills
            if unknown := [name for name in named if name not in self.skills]:
                raise ValueError(
                    f"the limit {limit.text!r} names the skill {unknown[0]!r}, which the agent "
                    f"{self.name!r} does not have; its skills are {', '.join(self.skills)}"
                )
        limits = [*self.limits, *[each for s in self.skills.values() for each in s.limits]]
        return (*limits, *self.rules.limits)

    def _operations(self, given: Mapping[str, Scheme | Security]) -> dict[str, Security]:
        """Return the requirements of operations. Raises ``ValueError`` for an unknown name."""
        known = [*[each.name for each in OPERATIONS], *self._method_names]
        if FILE_TRANSFER in self.default_extensions:
            known += FILE_OPERATIONS
        unknown = [name for name in given if name not in known]
        if unknown:
            raise ValueError(
                f"Rights.operations names {', '.join(map(repr, unknown))}, which this agent does "
                f"not have; its operations are {', '.join(known)}"
            )
        found = {
            name: security_of(each, f"Rights.operations of {name}") for name, each in given.items()
        }
        if "SendMessage" in found:
            found.setdefault("SendStreamingMessage", found["SendMessage"])
        return found

    @property
    def _authorization(self) -> Authorization | None:
        """The rules about callers, ``None`` if there are none."""
        skills = {s.id: s.security for s in self.skills.values() if s.security is not None}
        identity = self.rules.needs_identity
        is_open = self.security is None and self.policy is None and not identity
        if is_open and not (skills or self.operation_security):
            return None
        return Authorization(
            self.security,
            permissions=self.rules.permissions,
            needs_identity=identity,
            skills=skills,
            operations=self.operation_security,
            policy=self.policy,
            hidden=[skill.id for skill in self.skills.values() if not skill.listing.is_public],
        )

    @property
    def _has_extended_card(self) -> bool:
        """True if there are cards that show more than the public one."""
        interfaces = self.listed_interfaces
        return (
            self.extended_cards is not None
            or (interfaces is not None and interfaces.is_extended)
            or any(skill.listing.is_extended for skill in self.skills.values())
        )

    def card(self, at: str | tuple[AgentInterface, ...]) -> AgentCard:
        """Return the agent's public card for a JSON-RPC address, or for interfaces."""
        if isinstance(at, str):
            at = (AgentInterface(url=at, protocol_binding="JSONRPC", protocol_version=LATEST),)
        authorization = self._authorization
        securities = () if authorization is None else authorization.securities
        return AgentCard(
            name=self.name,
            description=self.description or self.default_skill.description,
            supported_interfaces=at,
            provider=self.details.provider,
            version=self.version,
            documentation_url=self.details.documentation_url,
            icon_url=self.details.icon_url,
            capabilities=AgentCapabilities(
                streaming=self.details.streaming,
                push_notifications=self.details.push_notifications,
                extended_agent_card=self._has_extended_card,
                extensions=tuple(extension.declared() for extension in self._declared),
            ),
            default_input_modes=self.input_modes or ANY_MODES,
            default_output_modes=self.output_modes,
            skills=tuple(s.described for s in self.skills.values() if s.listing.is_public),
            security_schemes=card_schemes(securities),
            security_requirements=() if self.security is None else self.security.declared(),
        )


def _grouped(kind: type[G], keyword: str, given: G | None) -> G:
    """Return the options in a keyword's group. Raises ``TypeError`` for another value."""
    if given is None:
        return kind()
    if not isinstance(given, kind):
        raise TypeError(f"{keyword} is {kind.__name__}(...), not {given!r:.100}")
    return given


def _check_takes_data(skill: Skill) -> None:
    """Reject input modes without data and text for a skill with typed inputs."""
    kinds = (Part(data={}), Part(text=""))
    if skill.input_modes and not any(takes_part(skill.input_modes, part) for part in kinds):
        raise ValueError(
            f"the skill {skill.id!r} has typed parameters, and its input_modes take neither "
            "application/json nor text/plain"
        )


def slug(name: str) -> str:
    """Return a name as a path segment."""
    return re.sub(r"[^\w]+", "-", name.lower()).strip("-_") or "agent"


log = logging.getLogger("parley.agent")

BUILT_IN: tuple[Extension, ...] = (
    ResumableStreams(),
    IdempotentSend(),
    TypedQuestions(),
    CallChain(),
    InTaskAuthorization(),
    PushDelivery(),
)
"""The default extensions of every agent; ``PushDelivery`` needs push notifications."""

OF_SOME = (SKILL_SCHEMAS, FILE_TRANSFER)
"""The URIs of default extensions for agents with typed skills, and for servers with files."""


def default_uris(chosen: bool | Iterable[str]) -> frozenset[str]:
    """Return the URIs of an agent's default extensions: all, none, or the ``chosen`` ones.

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
    """Return the extensions of an agent: the ``given`` ones, then the remaining ``defaults``.

    Raises ``ValueError`` for an extension that depends on one that the agent does not have.
    """
    built_in = [extension for extension in BUILT_IN if extension.uri in defaults]
    extensions = collect_extensions([*built_in, *with_installed(given)])
    for extension in extensions:
        if extension.required and extension.is_declaration_only:
            log.warning(
                "the extension %r is only data on the card, but required: callers who do not ask "
                "for it are rejected without need, so the specification advises against it; leave "
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
