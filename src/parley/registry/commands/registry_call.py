"""A call of a registry by a command: its connection, its time limit, and its failures."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from parley.cli.calls.agent_call import AgentCall, debug_log
from parley.cli.output.failures import INTERRUPTED, CommandFailure, UsageFailure
from parley.cli.output.redaction import without_user
from parley.cli.output.streams import Output
from parley.cli.output.text import shell_words
from parley.cli.settings.table import CommandSettings
from parley.client.errors import (
    AddressNotAllowed,
    AuthenticationRequired,
    ClientError,
    Disconnected,
    NotEncrypted,
    Timeout,
    Unreachable,
)
from parley.host.program import invocation
from parley.registry.client.found import FoundAgent
from parley.registry.client.places import (
    VARIABLE,
    AgentNotFound,
    NoRegistry,
    NotARegistry,
    RegistryRefused,
)
from parley.registry.client.remote_registry import RemoteRegistry


class RegistryCall:
    """The state of a command that calls a registry; it never sends the credentials of agents."""

    def __init__(self, settings: CommandSettings, output: Output) -> None:
        self.settings = settings
        self.output = output
        self.reference = settings.registry or ""

    def run(self, work: Callable[[RemoteRegistry], Awaitable[int]]) -> int:
        """Return the exit status of ``work``, within ``--timeout``. Raises ``CommandFailure``."""
        settings = self.settings
        if settings.credential_redirect is not None:
            redirect = settings.credential_redirect
            raise UsageFailure(str(redirect), hint=redirect.remedy)
        if settings.insecure:
            self.output.warn(
                "--insecure: the server's certificate is not checked. Use this for development only"
            )
        with debug_log(self.output):
            try:
                return asyncio.run(self._bounded(work))
            except KeyboardInterrupt:
                self.output.note("interrupted")
                return INTERRUPTED

    async def _bounded(self, work: Callable[[RemoteRegistry], Awaitable[int]]) -> int:
        limit = self.settings.timeout
        try:
            async with asyncio.timeout(limit) as deadline, self.opened() as registry:
                try:
                    return await work(registry)
                except ClientError as error:
                    raise self._failure(error, registry.name) from error
        except TimeoutError:
            if not deadline.expired():
                raise
            raise CommandFailure(
                "A2ACLI_ERR_TIMEOUT",
                f"the registry did not answer within {limit:g} s",
                hint="give a longer --timeout",
            ) from None

    def opened(self) -> RemoteRegistry:
        """Return the registry; the caller closes it. Raises ``UsageFailure``."""
        settings, call = self.settings, AgentCall(self.settings, self.output)
        try:
            return RemoteRegistry(
                self.reference or None,
                auth=None if call.uses_logins else False,
                bearer=settings.registry_bearer,
                api_key=settings.registry_api_key,
                timeout=call.response_timeout,
                insecure=settings.insecure,
                trust_origins=settings.trust_origin,
                tls=call.tls,
                proxy=settings.proxy,
            )
        except NoRegistry as error:
            message = str(error).partition(": ")[0] if not self.reference else str(error)
            raise UsageFailure(
                message,
                hint="name a registry, a domain or a catalog file with --registry, or set "
                f"{VARIABLE}",
            ) from None
        except ValueError as error:
            raise UsageFailure(str(error)) from None

    async def found(self, registry: RemoteRegistry, need: str, limit: int) -> list[FoundAgent]:
        """Return the agents that meet a need, an empty list without a need. Raises
        ``CommandFailure``.
        """
        if not need:
            return []
        try:
            return await registry.find(need, limit=limit)
        except ValueError as error:
            raise UsageFailure(str(error)) from None
        except ClientError as error:
            raise self._failure(error, registry.name) from error

    def command(self, words: Sequence[str]) -> str:
        """Return a command for the same registry, for the user to copy."""
        command = [*invocation(), *words]
        if self.reference:
            command += ["--registry", without_user(self.reference)]
        return shell_words(command)

    def _failure(self, error: ClientError, name: str) -> CommandFailure:
        match error:
            case AuthenticationRequired():
                login = shell_words([*invocation(), "auth", "login", name])
                settings = self.settings
                given = bool(settings.registry_bearer or settings.registry_api_key)
                return CommandFailure(
                    "A2ACLI_ERR_AUTH_FAILED" if given else "A2ACLI_ERR_CREDENTIALS_MISSING",
                    str(error).partition(": give auth=")[0],
                    # 403: the caller is known, and the message names the missing permission.
                    hint=None
                    if error.status == 403
                    else f"log in: {login}; or give --bearer or --api-key",
                    a2a_code=error.status,
                )
            case NotEncrypted():
                return CommandFailure(
                    "A2ACLI_ERR_AUTH_FAILED", str(error).partition("; in a network")[0]
                )
            case AgentNotFound():
                search = self.command(["agents", "search", "WORDS"])
                return CommandFailure(
                    "PARLEY_ERR_NOT_FOUND", str(error), hint=f"search for it: {search}"
                )
            case RegistryRefused():
                return CommandFailure(
                    error.code or "PARLEY_ERR_REGISTRY", str(error), a2a_code=error.status
                )
            case NotARegistry():
                return CommandFailure("PARLEY_ERR_NO_REGISTRY", str(error))
            case Unreachable() | Disconnected() | Timeout() | AddressNotAllowed():
                return CommandFailure(
                    "A2ACLI_ERR_UNREACHABLE",
                    str(error),
                    hint="is the registry running, and is the address right?",
                )
            case _:
                return CommandFailure("A2ACLI_ERR_INTERNAL", str(error), hint="--debug shows more")
