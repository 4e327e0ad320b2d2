"""One call of an agent from the command line: connect, do it within the time, say how it failed."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from parley.cli.output.card_text import describe_interface
from parley.cli.output.failures import INTERRUPTED, CommandFailure, UsageFailure, protocol_failure
from parley.cli.output.redaction import without_user
from parley.cli.output.streams import Output
from parley.cli.output.text import shell_words
from parley.cli.program import invocation
from parley.cli.settings.table import Settings
from parley.client import RemoteAgent, connect
from parley.client.bindings.binding import canonical
from parley.client.bindings.http import HttpTransport
from parley.client.errors import (
    AuthenticationRequired,
    CardInvalid,
    CardNotFound,
    ClientError,
    Disconnected,
    NoCommonInterface,
    NoCommonVersion,
    OriginNotTrusted,
    Timeout,
    UnexpectedStatus,
    Unreachable,
)
from parley.client.origin import Origin
from parley.client.retry import Retry
from parley.model.cards import AgentCard
from parley.model.errors import (
    A2AError,
    PermissionDeniedError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnauthenticatedError,
    UnsupportedOperationError,
    VersionNotSupportedError,
)
from parley.model.tasks import Task
from parley.wire.versions import SUPPORTED_VERSIONS

MOMENT = 0.5  # seconds after which a task is worth a note
ANSWER_TIME = 30.0  # for a request that an agent answers at once
PATIENCE = Retry(calls=2, streams=4, first=0.2, limit=2.0)  # then it is polled
FLOOR = "1.0"  # older versions have to be asked for (command-line specification, §13.2)
_CREDENTIAL_WORDS = ("authorization", "cookie", "key", "token", "secret")


class AgentCall:
    """What is known of one run of a client command while it runs.

    ``task_id`` is noted as soon as the agent names it, so that it can be told when the command is
    interrupted or runs out of time. ``before`` is the task that a message continued, as it stood
    then, where that is known.
    """

    def __init__(self, settings: Settings, output: Output) -> None:
        self.settings = settings
        self.output = output
        self.task_id = settings.task_id or ""
        self.before: Task | None = None
        self._told = ""
        self._telling: asyncio.TimerHandle | None = None
        self.card: AgentCard | None = None

    def run(self, work: Callable[[], Awaitable[None]]) -> int:
        """Do ``work`` within ``--timeout`` and return the exit status. Raises
        ``CommandFailure``.
        """
        astray = self.settings.misdirection
        if astray is not None:
            raise UsageFailure(str(astray), hint=astray.way_out)
        self._warn()
        with _debug_log(self.output):
            try:
                asyncio.run(self._bounded(work))
            except KeyboardInterrupt:
                self._say_where_it_goes_on()
                return INTERRUPTED
        return 0

    async def _bounded(self, work: Callable[[], Awaitable[None]]) -> None:
        limit = self.settings.timeout
        try:
            async with asyncio.timeout(limit) as deadline:
                try:
                    await work()
                except (A2AError, ClientError) as error:
                    raise self._failure(error) from error
        except TimeoutError:
            if not deadline.expired():
                raise
            what = f"task {self.task_id} did not end" if self.task_id else "there was no answer"
            raise CommandFailure(
                "A2ACLI_ERR_TIMEOUT",
                f"{what} within {limit:g} s",
                hint=f"the task goes on; wait for it with: {self.command('task get --wait')}"
                if self.task_id
                else "give a longer --timeout",
            ) from None
        finally:
            if self._telling is not None:
                self._telling.cancel()

    @asynccontextmanager
    async def http(self) -> AsyncIterator[HttpTransport]:
        """Open connections as the settings ask."""
        transport = HttpTransport(insecure=self.settings.insecure)
        try:
            yield transport
        finally:
            await transport.close()

    @property
    def headers(self) -> dict[str, str]:
        """The service parameters, as HTTP carries them."""
        headers: dict[str, str] = {}
        for item in self.settings.svc_param:
            name, _, value = (each.strip() for each in item.partition(":"))
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        return headers

    @property
    def bindings(self) -> tuple[str, ...]:
        """The preferred bindings, as cards spell them."""
        return tuple(canonical(name) for name in self.settings.transport)

    @property
    def version(self) -> str:
        """The version of the protocol to speak."""
        return self.settings.a2a_version or FLOOR

    @property
    def answer_time(self) -> float:
        """How long a request may take that an agent answers at once."""
        return max(ANSWER_TIME, self.settings.timeout or 0.0)

    @asynccontextmanager
    async def agent(self) -> AsyncIterator[RemoteAgent]:
        """Connect to the agent that ``--agent-card`` leads to."""
        settings = self.settings
        try:
            connection = connect(
                settings.agent_card,
                headers=self.headers,
                bearer=settings.bearer,
                api_key=settings.api_key,
                binding=self.bindings,
                version=self.version,
                timeout=self.answer_time,
                retries=PATIENCE,
                insecure=settings.insecure,
                trust_origins=settings.trust_origin,
            )
        except ValueError as error:
            raise UsageFailure(str(error)) from None
        async with connection as agent:
            self.card = agent.card
            self._explain(agent)
            first = agent.interface
            try:
                yield agent
            finally:
                if agent.interface != first:
                    used = describe_interface(agent.interface)
                    self.output.note(f"{describe_interface(first)} cannot be used; called {used}")

    def _explain(self, agent: RemoteAgent) -> None:
        chosen = agent.interface
        tell = self.output.note if self.settings.verbose else self.output.debug
        tell(f"calling {describe_interface(chosen)} in version {agent.version}")
        for passed in agent.skipped_interfaces:
            wanted = canonical(passed.protocol_binding) in self.bindings
            tell = self.output.note if wanted or self.settings.verbose else self.output.debug
            origin = self._origin(passed.url)
            tell(
                f"{describe_interface(passed)} is passed over: the credentials were not given for "
                "its origin" + (f"; to allow it: --trust-origin {origin}" if origin else "")
            )
        if self.bindings and canonical(chosen.protocol_binding) not in self.bindings:
            self.output.note(
                f"none of the preferred transports is to be had; using {chosen.protocol_binding}"
            )
        if self.settings.bearer or self.settings.api_key:
            self._check_scheme(agent.card)
            self._check_channel(chosen.url)

    def insist_on_scheme(self, card: AgentCard) -> None:
        """Refuse to present a credential that the card names no scheme for (§12.4)."""
        takes_key, takes_bearer = _takes(card)
        if (self.settings.api_key and not takes_key) or (self.settings.bearer and not takes_bearer):
            given = "API key" if self.settings.api_key and not takes_key else "bearer token"
            raise UsageFailure(
                f"the card declares no security scheme that takes the {given}",
                hint=f"see what it declares: {self.command('card get', '--verbose')}",
            )

    def _check_scheme(self, card: AgentCard) -> None:
        schemes = card.security_schemes
        takes_key, takes_bearer = _takes(card)
        if self.settings.api_key and not takes_key:
            self.output.warn(
                "the card declares no API key scheme; the key is sent in the header X-API-Key"
            )
        if self.settings.bearer and schemes and not takes_bearer:
            self.output.warn("the card declares no scheme that takes a bearer token; it is sent")

    def _check_channel(self, url: str) -> None:
        origin = self._origin(url)
        if origin is not None and origin.is_plaintext:
            self.output.warn(f"the credential is sent to {origin.host} without encryption")

    def _origin(self, url: str) -> Origin | None:
        try:
            return Origin.of_grpc(url, insecure=self.settings.insecure)
        except ValueError:
            return None

    def _warn(self) -> None:
        if not self.settings.insecure:
            return
        text = "--insecure: the server's certificate is not checked"
        if self.settings.bearer or self.settings.api_key or self.settings.svc_param:
            text += "; SECURITY RISK: whoever is in between can read the credential that is sent"
        self.output.warn(f"{text}. Use this for development only")

    def _say_where_it_goes_on(self) -> None:
        if self.task_id:
            self.output.note(f"interrupted; task {self.task_id} goes on without this command")
            self.output.note(f"wait for it with: {self.command('task get --wait')}")
        else:
            self.output.note("interrupted")

    def met(self, task_id: str, context_id: str) -> None:
        """Take note of the task. Its ids are told if it takes longer than a moment."""
        if task_id == self._told:
            return
        asked, self._told, self.task_id = self.settings.task_id, task_id, task_id
        if asked and asked != task_id:
            self.output.warn(f"the agent answers with task {task_id}, not with {asked}")
        if not self.settings.stream:
            text = f"task {task_id} in context {context_id} is under way"
            self._telling = asyncio.get_running_loop().call_later(MOMENT, self.output.note, text)

    # -- commands to go on with ----------------------------------------------------------------

    def command(self, words: str, *more: str) -> str:
        """Return a parley command for the same agent and, by default, the task at hand."""
        given = [*invocation(), *words.split()]
        settings = self.settings
        if settings.is_flag("agent_card"):
            given += ["-a", without_user(settings.agent_card)]
        if settings.is_flag("config"):
            given += ["--config", settings.config or ""]
        for name in settings.trust_origin if settings.is_flag("trust_origin") else ():
            given += ["--trust-origin", name]
        for name in settings.transport if settings.is_flag("transport") else ():
            given += ["--transport", name]
        if settings.is_flag("a2a_version"):
            given += ["--a2a-version", settings.a2a_version or ""]
        if settings.is_flag("insecure") and settings.insecure:
            given.append("--insecure")
        return shell_words([*given, *(more or self.task_argument)])

    @property
    def task_argument(self) -> tuple[str, ...]:
        """The task at hand as an argument, which is no option whatever the agent calls it."""
        return ("--", self.task_id) if self.task_id.startswith("-") else (self.task_id,)

    # -- failures ------------------------------------------------------------------------------

    def _failure(self, error: A2AError | ClientError) -> CommandFailure:
        match error:
            case AuthenticationRequired() | UnauthenticatedError() | PermissionDeniedError():
                return self._unauthenticated(error)
            case A2AError():
                return protocol_failure(error, hint=self._hint(error))
            case CardNotFound():
                return CommandFailure(
                    "A2ACLI_ERR_CARD_NOT_FOUND",
                    str(error),
                    hint="-a takes a host, an address, the URL of a card, or a card file",
                )
            case CardInvalid():
                return CommandFailure("A2ACLI_ERR_CARD_INVALID", str(error))
            case OriginNotTrusted():
                allowed = "".join(f" --trust-origin {origin}" for origin in error.origins)
                return UsageFailure(
                    error.reason,
                    hint=f"if it may have them, allow it:{allowed}" if allowed else None,
                )
            case NoCommonVersion():
                # The protocol has a name for it, though here no server had to say it (§11.4).
                return CommandFailure(
                    VersionNotSupportedError.__name__,
                    str(error),
                    hint=self._version_hint(),
                )
            case NoCommonInterface():
                return CommandFailure(
                    "A2ACLI_ERR_INTERNAL",
                    str(error),
                    hint=f"see what it offers: {self.command('card get', '--verbose')}",
                )
            case Unreachable() | Disconnected() | Timeout():
                return CommandFailure(
                    "A2ACLI_ERR_UNREACHABLE", str(error), hint=self._unreachable_hint()
                )
            case UnexpectedStatus():
                return CommandFailure(
                    "A2ACLI_ERR_INTERNAL",
                    str(error),
                    a2a_code=error.status,
                    hint="this is no answer of an agent; --debug shows all of it",
                )
            case _:
                return CommandFailure("A2ACLI_ERR_INTERNAL", str(error), hint="--debug shows more")

    def _unreachable_hint(self) -> str:
        if self.task_id:
            return f"the task may still go on; look with: {self.command('task get')}"
        if not self.settings.is_flag("agent_card"):
            source = self.settings.sources["agent_card"]
            return (
                f"the address {self.settings.agent_card} comes from: {source}. Is the agent "
                "running there? Serve one with parley serve agent.py, or name another with -a"
            )
        return "is the agent running, and the address right?"

    def _version_hint(self) -> str:
        older = [version for version in SUPPORTED_VERSIONS if version != self.version]
        if self.settings.a2a_version is None:
            return f"if the agent speaks it, allow an older version: --a2a-version {older[0]}"
        return f"see what it offers: {self.command('card get', '--verbose')}"

    def _hint(self, error: A2AError) -> str:
        shown = "--debug shows the exchange with the agent"
        if isinstance(error, TaskNotFoundError):
            return f"see your tasks with: {self.command('task list', '--verbose')}; {shown}"
        if isinstance(error, VersionNotSupportedError):
            return f"see what the agent speaks: {self.command('card get', '--verbose')}"
        if isinstance(error, UnsupportedOperationError | TaskNotCancelableError) and self.task_id:
            return f"look at the task with: {self.command('task get')}; {shown}"
        return shown

    def _unauthenticated(self, error: Exception) -> CommandFailure:
        code = error.code if isinstance(error, A2AError) else getattr(error, "status", None)
        names = [item.partition(":")[0].lower() for item in self.settings.svc_param]
        supplied = (
            self.settings.bearer
            or self.settings.api_key
            or any(word in name for name in names for word in _CREDENTIAL_WORDS)
        )
        if supplied:
            return CommandFailure(
                "A2ACLI_ERR_AUTH_FAILED",
                f"the credential was refused: {error}",
                hint="is it the right one for this agent, and still valid?",
                a2a_code=code,
            )
        return CommandFailure(
            "A2ACLI_ERR_CREDENTIALS_MISSING",
            f"the agent wants credentials: {error}",
            hint=self._how_to_authenticate(),
            a2a_code=code,
        )

    def _how_to_authenticate(self) -> str:
        wants_key, wants_token = _takes(self.card) if self.card else (False, False)
        if wants_key and not wants_token:
            return "set A2ACLI_API_KEY to the API key, or give --api-key"
        if wants_token and not wants_key:
            return "set A2ACLI_BEARER to the token, or give --bearer"
        return "set A2ACLI_BEARER or A2ACLI_API_KEY, or give --bearer or --api-key"


def _takes(card: AgentCard) -> tuple[bool, bool]:
    """Return whether the card has a scheme for an API key, and one for a bearer token."""
    kinds = [scheme.api_key_security_scheme is None for scheme in card.security_schemes.values()]
    return False in kinds, True in kinds


class _DebugHandler(logging.Handler):
    """Shows what the client logs, without credentials, and when it happened."""

    def __init__(self, output: Output) -> None:
        super().__init__(logging.DEBUG)
        self._output = output
        self._began = time.monotonic()

    def emit(self, record: logging.LogRecord) -> None:
        elapsed = (time.monotonic() - self._began) * 1000
        self._output.debug(f"{elapsed:7.0f} ms  {record.getMessage()}")


class _debug_log:
    """Has the client's log shown while the block lasts, if --debug asks for it."""

    def __init__(self, output: Output) -> None:
        self._logger = logging.getLogger("parley.client")
        self._handler = _DebugHandler(output)
        self._before = (self._logger.level, self._logger.propagate)

    def __enter__(self) -> None:
        self._logger.addHandler(self._handler)
        self._logger.propagate = False  # what matters is said in our own words
        if self._handler._output.is_debug:
            self._logger.setLevel(logging.DEBUG)

    def __exit__(self, *error: object) -> None:
        self._logger.removeHandler(self._handler)
        self._logger.level, self._logger.propagate = self._before[0], self._before[1]
