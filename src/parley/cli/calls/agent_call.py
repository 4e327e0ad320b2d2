"""A call of an agent by a command: its connection, its time limit, and its failures."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parley.cli.output.failures import (
    INTERRUPTED,
    CommandFailure,
    UsageFailure,
    protocol_failure,
    wrong_usage,
)
from parley.cli.output.redaction import without_user
from parley.cli.output.rendering import describe_interface
from parley.cli.output.streams import Output
from parley.cli.output.text import shell_words
from parley.cli.settings.table import CommandSettings
from parley.client import RemoteAgent
from parley.client.auth.credentials import describe, is_unreadable
from parley.client.auth.issuers import TokenRefused
from parley.client.bindings.binding import canonical
from parley.client.bindings.http import HttpTransport, Tls
from parley.client.card.resolver import Reference
from parley.client.card.trust import DEFAULT_ALGORITHMS, CardTrust
from parley.client.errors import (
    AuthenticationRequired,
    CardInvalid,
    CardNotFound,
    CardNotTrusted,
    ClientError,
    Disconnected,
    NoCommonInterface,
    NoCommonVersion,
    NotEncrypted,
    OriginNotTrusted,
    Timeout,
    UnexpectedStatus,
    Unreachable,
)
from parley.client.origin import Origin
from parley.client.retry import Retry
from parley.extensions.installed import with_installed
from parley.host.connecting import connect
from parley.host.program import invocation
from parley.model.cards import AgentCard, AgentExtension
from parley.model.errors import (
    A2AError,
    ExtensionSupportRequiredError,
    PermissionDeniedError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnauthenticatedError,
    UnsupportedOperationError,
    VersionNotSupportedError,
)
from parley.model.extensions import Extension
from parley.model.tasks import Task
from parley.security.egress import Egress
from parley.wire.versions import SUPPORTED_VERSIONS

if TYPE_CHECKING:
    from parley import FoundAgent

NOTE_DELAY = 0.5  # seconds after which the command prints a running task's ids
RESPONSE_TIMEOUT = 30.0  # seconds, for a request without a task
RETRY = Retry(calls=2, streams=4, first=0.2, limit=2.0)  # polling follows
PROTOCOL_VERSION = "1.0"  # older versions only on request (command-line specification, §13.2)
_CREDENTIAL_WORDS = ("authorization", "cookie", "key", "token", "secret")


class AgentCall:
    """The state of a running client command.

    ``task_id`` is set as soon as the agent names the task, for the output after an interrupt or a
    timeout. ``before`` is the state of a continued task before the message, if known.
    """

    def __init__(self, settings: CommandSettings, output: Output) -> None:
        self.settings = settings
        self.output = output
        self.task_id = settings.task_id or ""
        self.before: Task | None = None
        self._noted_id = ""
        self._note_timer: asyncio.TimerHandle | None = None
        self.card: AgentCard | None = None
        self.reference: Reference = settings.agent_card
        self.egress: Egress | None = None
        self._has_login = False

    def run(self, work: Callable[[], Awaitable[Any]]) -> int:
        """Run ``work`` within ``--timeout`` and return the exit status. Raises
        ``CommandFailure``.
        """
        redirect = self.settings.credential_redirect
        if redirect is not None:
            raise UsageFailure(str(redirect), hint=redirect.remedy)
        self._warn_if_insecure()
        with debug_log(self.output):
            try:
                status: int | None = asyncio.run(self._bounded(work))
                return status or 0
            except KeyboardInterrupt:
                self._note_interrupt()
                return INTERRUPTED

    async def _bounded(self, work: Callable[[], Awaitable[Any]]) -> Any:
        limit = self.settings.timeout
        try:
            async with asyncio.timeout(limit) as deadline:
                try:
                    if is_identifier(self.settings.agent_card):
                        found = await self.look_up(self.settings.agent_card)
                        self.reference, self.egress = found.reference, found.egress
                    return await work()
                except (A2AError, ClientError) as error:
                    raise self.failure(error) from error
        except TimeoutError:
            if not deadline.expired():
                raise
            what = (
                f"task {self.task_id} did not end" if self.task_id else "the agent did not answer"
            )
            raise CommandFailure(
                "A2ACLI_ERR_TIMEOUT",
                f"{what} within {limit:g} s",
                hint="the task is still running; wait for it with: "
                f"{self.command('task get --wait')}"
                if self.task_id
                else "give a longer --timeout",
            ) from None
        finally:
            if self._note_timer is not None:
                self._note_timer.cancel()

    async def look_up(self, identifier: str) -> FoundAgent:
        """Find the agent of an identifier in the registry. Raises ``CommandFailure``, and
        ``ClientError`` for an unreachable registry.
        """
        from parley import RemoteRegistry

        settings = self.settings
        try:
            registry = RemoteRegistry(
                settings.registry,
                auth=None if self.uses_logins else False,
                bearer=settings.registry_bearer,
                api_key=settings.registry_api_key,
                timeout=self.response_timeout,
                insecure=settings.insecure,
                tls=self.tls,
                proxy=settings.proxy,
            )
        except ValueError as error:
            where = "--registry or PARLEY_REGISTRY names it"
            why = str(error) if settings.registry else where
            raise _not_found(f"{identifier} is looked up in a registry: {why}") from None
        async with registry:
            try:
                found = await registry.agent(identifier)
                found.reference  # noqa: B018  raises for an entry that is no agent
            except (AuthenticationRequired, Unreachable, Disconnected, Timeout):
                raise
            except (ClientError, ValueError) as error:
                raise _not_found(str(error)) from error
        self.output.debug(f"{registry.name} has {identifier} at {found.card_url or identifier}")
        return found

    @property
    def address(self) -> str:
        """The agent as the user named it; for an agent in a registry its address, if it has one."""
        given = self.reference
        return given if isinstance(given, str) else self.settings.agent_card

    @asynccontextmanager
    async def http(self) -> AsyncIterator[HttpTransport]:
        """Open an HTTP transport with the settings."""
        with wrong_usage():
            transport = HttpTransport(**self.http_options)
        try:
            yield transport
        finally:
            await transport.close()

    @property
    def http_options(self) -> dict[str, Any]:
        """The options of an HTTP transport. Raises ``ValueError``."""
        settings = self.settings
        return {
            "insecure": settings.insecure,
            "tls": self.tls,
            "proxy": settings.proxy,
            "egress": self.egress,
        }

    @property
    def tls(self) -> Tls | None:
        """The TLS settings. Raises ``ValueError``."""
        settings = self.settings
        if not (settings.ca_file or settings.client_cert or settings.client_key):
            return None
        return Tls(ca=settings.ca_file, cert=settings.client_cert, key=settings.client_key)

    @property
    def requires_signature(self) -> bool:
        """Return whether a card without a trusted signature is rejected."""
        return self.settings.require_signature or bool(self.settings.card_keys)

    def trust(
        self, algorithms: Iterable[str] = DEFAULT_ALGORITHMS, *, required: bool | None = None
    ) -> CardTrust:
        """Return the trusted signers of cards. Raises ``ValueError``.

        Keys on the command line replace origins that only the settings name.
        """
        settings = self.settings
        is_pinned = bool(settings.card_keys) and not settings.is_flag("card_key_origin")
        return CardTrust(
            keys=[Path(path) for path in settings.card_keys] or None,
            origins=() if is_pinned else settings.card_key_origin,
            algorithms=algorithms,
            required=self.requires_signature if required is None else required,
        )

    @property
    def uses_logins(self) -> bool:
        """Return whether a saved login (``parley auth login``) is used."""
        return self.settings.protection_file is None

    @property
    def headers(self) -> dict[str, str]:
        """The service parameters, as HTTP headers."""
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
        """The protocol version to use."""
        return self.settings.a2a_version or PROTOCOL_VERSION

    @property
    def response_timeout(self) -> float:
        """The time limit of a request without a task."""
        return max(RESPONSE_TIMEOUT, self.settings.timeout or 0.0)

    @property
    def connect_options(self) -> dict[str, Any]:
        """The options of ``parley.connect`` for an agent. Raises ``ValueError``."""
        settings = self.settings
        return {
            "auth": None if self.uses_logins else False,
            "headers": self.headers,
            "bearer": settings.bearer,
            "api_key": settings.api_key,
            "binding": self.bindings,
            "version": self.version,
            "timeout": self.response_timeout,
            "retries": RETRY,
            "insecure": settings.insecure,
            "trust_origins": settings.trust_origin,
            "tls": self.tls,
            "proxy": settings.proxy,
            "trust": self.trust() if self.requires_signature else None,
        }

    @asynccontextmanager
    async def agent(
        self, *, shows_trust: bool = False, retries: Retry = RETRY
    ) -> AsyncIterator[RemoteAgent]:
        """Connect to the agent of ``--agent-card``.

        ``shows_trust``: verify signatures even if none is required.
        """
        try:
            options = {**self.connect_options, "extensions": self._extensions}
            options["retries"] = retries
            if shows_trust and options["trust"] is None:
                options["trust"] = self.trust()
            connection = connect(self.reference, egress=self.egress, **options)
        except (ValueError, TypeError) as error:
            raise UsageFailure(str(error)) from None
        async with connection as agent:
            self.card = agent.card
            self._check_extensions(agent.card)
            self._has_login = agent.has_credentials
            self._log_choice(agent)
            first = agent.interface
            try:
                yield agent
            finally:
                if agent.interface != first:
                    used = describe_interface(agent.interface)
                    self.output.note(f"{describe_interface(first)} cannot be used; used {used}")

    @property
    def _extensions(self) -> list[Extension | AgentExtension | str]:
        """Return the extensions to activate. Raises ``ValueError`` for an unknown name."""
        return with_installed(self.settings.extension)

    def _check_extensions(self, card: AgentCard) -> None:
        """Reject an extension that the card does not declare: it would have no effect."""
        declared = [each.uri for each in card.capabilities.extensions]
        for given in self._extensions:
            uri = given if isinstance(given, str) else given.uri
            if uri not in declared:
                known = ", ".join(declared) or "none"
                raise UsageFailure(
                    f"the agent does not declare the extension {uri}; it declares: {known}",
                    hint=f"see its card: {self.command('card get', '--verbose')}",
                )

    def _log_choice(self, agent: RemoteAgent) -> None:
        chosen = agent.interface
        log = self.output.note if self.settings.verbose else self.output.debug
        log(f"calling {describe_interface(chosen)} in version {agent.version}")
        for skipped in agent.skipped_interfaces:
            is_preferred = canonical(skipped.protocol_binding) in self.bindings
            log = self.output.note if is_preferred or self.settings.verbose else self.output.debug
            origin = self._origin(skipped.url)
            log(
                f"{describe_interface(skipped)} is skipped: the credentials were not given for "
                "its origin" + (f"; to allow it: --trust-origin {origin}" if origin else "")
            )
        if self.bindings and canonical(chosen.protocol_binding) not in self.bindings:
            self.output.note(
                f"none of the preferred transports is available; using {chosen.protocol_binding}"
            )
        if self.settings.bearer or self.settings.api_key:
            self._warn_without_scheme(agent.card)
            self._warn_if_plaintext(chosen.url)
        elif not (self.headers or agent.has_credentials) and is_unreadable(agent.card):
            self.output.warn(
                f"the agent requires {describe(agent.card)}; calling it without credentials"
            )

    def require_scheme(self, card: AgentCard) -> None:
        """Raise ``UsageFailure`` for a credential without a scheme on the card (§12.4)."""
        takes_key, takes_bearer = _accepted_credentials(card)
        if (self.settings.api_key and not takes_key) or (self.settings.bearer and not takes_bearer):
            given = "API key" if self.settings.api_key and not takes_key else "bearer token"
            raise UsageFailure(
                f"the card declares no security scheme for the {given}",
                hint=f"see its schemes: {self.command('card get', '--verbose')}",
            )

    def _warn_without_scheme(self, card: AgentCard) -> None:
        schemes = card.security_schemes
        takes_key, takes_bearer = _accepted_credentials(card)
        if self.settings.api_key and not takes_key:
            self.output.warn(
                "the card declares no API key scheme; the key is sent in the header X-API-Key"
            )
        if self.settings.bearer and schemes and not takes_bearer:
            self.output.warn("the card declares no scheme for a bearer token; sending it anyway")

    def _warn_if_plaintext(self, url: str) -> None:
        origin = self._origin(url)
        if self.settings.insecure and origin is not None and origin.is_plaintext:
            self.output.warn(f"the credential is sent to {origin.host} without encryption")

    def _origin(self, url: str) -> Origin | None:
        try:
            return Origin.of_grpc(url, insecure=self.settings.insecure)
        except ValueError:
            return None

    def _warn_if_insecure(self) -> None:
        if not self.settings.insecure:
            return
        text = "--insecure: the server's certificate is not checked"
        if self.settings.bearer or self.settings.api_key or self.settings.svc_param:
            text += "; SECURITY RISK: an intermediary can read the credential"
        self.output.warn(f"{text}. Use this for development only")

    def _note_interrupt(self) -> None:
        if self.task_id:
            self.output.note(f"interrupted; task {self.task_id} continues without this command")
            self.output.note(f"wait for it with: {self.command('task get --wait')}")
        else:
            self.output.note("interrupted")

    def note_task(self, task_id: str, context_id: str) -> None:
        """Record the task, and print its ids if it takes longer than ``NOTE_DELAY``."""
        if task_id == self._noted_id:
            return
        asked, self._noted_id, self.task_id = self.settings.task_id, task_id, task_id
        if asked and asked != task_id:
            self.output.warn(f"the agent answered with task {task_id}, not with {asked}")
        if not self.settings.stream:
            text = f"task {task_id} in context {context_id} is running"
            self._note_timer = asyncio.get_running_loop().call_later(
                NOTE_DELAY, self.output.note, text
            )

    # -- next commands -------------------------------------------------------------------------

    def command(self, words: str, *more: str) -> str:
        """Return a parley command for the same agent and, by default, the same task."""
        command = [*invocation(), *words.split()]
        settings = self.settings
        repeated: dict[str, Any] = {
            "-a": [without_user(settings.agent_card)],
            "--registry": [without_user(settings.registry or "")],
            "--config": [settings.config],
            "--trust-origin": settings.trust_origin,
            "--card-keys": settings.card_keys,
            "--card-key-origin": settings.card_key_origin,
            "--require-signature": settings.require_signature,
            "--transport": settings.transport,
            "--extension": () if words.startswith("card") else settings.extension,
            "--a2a-version": [settings.a2a_version],
            "--insecure": settings.insecure,
            "--ca-file": [settings.ca_file],
            "--client-cert": [settings.client_cert],
            "--client-key": [settings.client_key],
            "--proxy": [without_user(settings.proxy or "")],
        }
        for flag, given in repeated.items():
            field = "agent_card" if flag == "-a" else flag[2:].replace("-", "_")
            if settings.is_flag(field) and given is True:
                command.append(flag)
            elif settings.is_flag(field) and given:
                command += [word for value in given for word in (flag, value or "")]
        return shell_words([*command, *(more or self.task_argument)])

    @property
    def task_argument(self) -> tuple[str, ...]:
        """Return the task id as an argument that never parses as an option, even if it begins with
        a dash.
        """
        return ("--", self.task_id) if self.task_id.startswith("-") else (self.task_id,)

    # -- failures ------------------------------------------------------------------------------

    def failure(self, error: A2AError | ClientError) -> CommandFailure:
        """Return an error as a failure of the command, with a hint."""
        match error:
            case AuthenticationRequired() | UnauthenticatedError() | PermissionDeniedError():
                return self._unauthenticated(error)
            case A2AError():
                return protocol_failure(error, hint=self._protocol_hint(error))
            case CardNotFound():
                return _not_found(str(error))
            case CardNotTrusted():
                return CommandFailure(
                    "A2ACLI_ERR_CARD_INVALID", str(error), hint=self._trust_hint()
                )
            case CardInvalid():
                return CommandFailure("A2ACLI_ERR_CARD_INVALID", str(error))
            case NotEncrypted():
                return UsageFailure(
                    str(error).partition(";")[0],
                    hint="call an https address; --insecure permits it in a network that you trust",
                )
            case OriginNotTrusted():
                allowed = "".join(f" --trust-origin {origin}" for origin in error.origins)
                return UsageFailure(
                    error.reason,
                    hint=f"if it may receive them, allow it:{allowed}" if allowed else None,
                )
            case NoCommonVersion():
                # The protocol's own error name, although no server raised it (§11.4).
                return CommandFailure(
                    VersionNotSupportedError.__name__, str(error), hint=_version_hint(error)
                )
            case NoCommonInterface():
                return CommandFailure(
                    "A2ACLI_ERR_INTERNAL",
                    str(error),
                    hint=f"see its interfaces: {self.command('card get', '--verbose')}",
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
                    hint="this is not the response of an agent; --debug shows it in full",
                )
            case _:
                return CommandFailure("A2ACLI_ERR_INTERNAL", str(error), hint="--debug shows more")

    def _trust_hint(self) -> str:
        if self.settings.card_keys:
            return "--card-keys names the trusted keys; does the agent still use them?"
        shows = self.command("card get", "--no-require-signature")
        return f"show the card without using it: {shows}"

    def _unreachable_hint(self) -> str:
        if self.task_id:
            return f"the task may still be running; check with: {self.command('task get')}"
        if not self.settings.is_flag("agent_card"):
            source = self.settings.sources["agent_card"]
            return (
                f"the address {self.settings.agent_card} comes from: {source}. Is the agent "
                "running there? Serve one with parley serve agent.py, or name another with -a"
            )
        return "is the agent running, and is the address right?"

    def _protocol_hint(self, error: A2AError) -> str:
        debug_hint = "--debug shows the exchange with the agent"
        if isinstance(error, TaskNotFoundError):
            return f"see your tasks with: {self.command('task list', '--verbose')}; {debug_hint}"
        if isinstance(error, ExtensionSupportRequiredError):
            needed = self.card.capabilities.extensions if self.card is not None else ()
            flags = [
                f"--extension {each.uri}"
                for each in needed
                if each.required and each.uri not in self.settings.extension
            ]
            if flags:
                return f"activate what the agent requires: {' '.join(flags)}"
        if isinstance(error, VersionNotSupportedError):
            return f"see the agent's versions and bindings: {self.command('card get', '--verbose')}"
        if isinstance(error, UnsupportedOperationError | TaskNotCancelableError) and self.task_id:
            return f"show the task with: {self.command('task get')}; {debug_hint}"
        return debug_hint

    def _unauthenticated(self, error: Exception) -> CommandFailure:
        code = error.code if isinstance(error, A2AError) else getattr(error, "status", None)
        names = [item.partition(":")[0].lower() for item in self.settings.svc_param]
        supplied = (
            self.settings.bearer
            or self.settings.api_key
            or any(word in name for name in names for word in _CREDENTIAL_WORDS)
        )
        if self._has_login or isinstance(error, TokenRefused):
            return CommandFailure(
                "A2ACLI_ERR_AUTH_FAILED",
                f"the login was rejected: {error}",
                hint=f"log in again: {self._login_command()}",
                a2a_code=code,
            )
        if supplied:
            return CommandFailure(
                "A2ACLI_ERR_AUTH_FAILED",
                f"the credential was rejected: {error}",
                hint="is it the right one for this agent, and still valid?",
                a2a_code=code,
            )
        return CommandFailure(
            "A2ACLI_ERR_CREDENTIALS_MISSING",
            # The error's advice for programs does not apply here; the hint names the command.
            f"the agent requires credentials: {str(error).partition(': connect(...')[0]}",
            hint=self._credentials_hint(),
            a2a_code=code,
        )

    def _login_command(self) -> str:
        return shell_words([*invocation(), "auth", "login", without_user(self.settings.agent_card)])

    def _credentials_hint(self) -> str:
        if not self.uses_logins:
            return (
                f"logins are not used, because {self.settings.protection_file}, which was found "
                "automatically "
                "rather than named, controls how they are protected; name it with --config to "
                "trust it"
            )
        return f"log in: {self._login_command()}; or {self._flags_hint()}"

    def _flags_hint(self) -> str:
        takes_key, takes_bearer = _accepted_credentials(self.card) if self.card else (False, False)
        if takes_key and not takes_bearer:
            return "set A2ACLI_API_KEY to the API key, or give --api-key"
        if takes_bearer and not takes_key:
            return "set A2ACLI_BEARER to the token, or give --bearer"
        return "set A2ACLI_BEARER or A2ACLI_API_KEY, or give --bearer or --api-key"


def is_identifier(reference: str) -> bool:
    """Return whether a reference to an agent is its identifier in a registry."""
    return reference.lower().startswith("urn:")


def _not_found(message: str) -> CommandFailure:
    """Return the failure for a reference that leads to no agent."""
    return CommandFailure(
        "A2ACLI_ERR_CARD_NOT_FOUND",
        message,
        hint="name an agent by a host, an address, the URL of a card, a card file, or an "
        "identifier "
        "in a registry (urn:...)",
    )


def _version_hint(error: NoCommonVersion) -> str:
    if error.versions:
        return f"call it in a version that it supports: --a2a-version {error.versions[0]}"
    return f"parley supports {' and '.join(SUPPORTED_VERSIONS)}; the agent supports neither"


def _accepted_credentials(card: AgentCard) -> tuple[bool, bool]:
    """Return whether the card has a scheme for an API key, and a scheme for a bearer token."""
    kinds = [scheme.api_key_security_scheme is None for scheme in card.security_schemes.values()]
    return False in kinds, True in kinds


class _DebugHandler(logging.Handler):
    """Prints the client's log with the elapsed time, without credentials."""

    def __init__(self, output: Output) -> None:
        super().__init__(logging.DEBUG)
        self._output = output
        self._began = time.monotonic()

    def emit(self, record: logging.LogRecord) -> None:
        elapsed = (time.monotonic() - self._began) * 1000
        self._output.debug(f"{elapsed:7.0f} ms  {record.getMessage()}")


@contextmanager
def debug_log(output: Output) -> Iterator[None]:
    """Print the client's log within the block, if --debug is on."""
    log, handler = logging.getLogger("parley.client"), _DebugHandler(output)
    before = log.level, log.propagate
    log.addHandler(handler)
    log.propagate = False  # the command reports errors itself
    if output.is_debug:
        log.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.level, log.propagate = before
