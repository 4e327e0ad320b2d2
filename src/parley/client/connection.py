"""From a reference to a remote agent."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from types import TracebackType
from typing import Any

from parley.client.bindings.binding import Binding, home
from parley.client.bindings.http import HttpTransport
from parley.client.calls.negotiation import Interfaces
from parley.client.card.interface import Candidate, choose, declares
from parley.client.card.resolver import CardResolver, Reference, ResolvedCard
from parley.client.credentials import Credentials
from parley.client.extensions import activate
from parley.client.headers import taken_apart
from parley.client.remote_agent import RemoteAgent
from parley.client.retry import Retry
from parley.model.cards import AgentExtension
from parley.model.extensions import RESUMABLE_STREAMS, Extension, collect_extensions
from parley.model.service import CallContext
from parley.wire import versions


class Connection:
    """An agent about to be called: ``async with`` it, or ``await`` it and close it yourself."""

    def __init__(
        self,
        reference: Reference,
        *,
        headers: Mapping[str, str] | None,
        bearer: str | None,
        api_key: str | None,
        binding: str | Sequence[str],
        version: str,
        timeout: float | None,
        stream_idle_timeout: float | None,
        retry: Retry,
        extensions: Sequence[Extension | AgentExtension | str],
        idempotent: bool,
        insecure: bool,
        trust_origins: Sequence[str],
        http: HttpTransport | None,
    ) -> None:
        self._reference, self._credentials = Credentials.given(
            reference,
            headers=headers,
            bearer=bearer,
            api_key=api_key,
            trust_origins=trust_origins,
        )
        self._binding = binding
        self._version = version
        self._timeout = timeout
        self._idle = stream_idle_timeout
        self._retry = retry
        self._extensions = collect_extensions(extensions)
        self._idempotent = idempotent
        self._owns_http = http is None
        self._http = http or HttpTransport(insecure=insecure)
        self._agent: RemoteAgent | None = None

    def __await__(self) -> Generator[Any, None, RemoteAgent]:
        return self._open().__await__()

    async def __aenter__(self) -> RemoteAgent:
        self._agent = await self._open()
        return self._agent

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._agent is not None:
            await self._agent.aclose()

    async def _open(self) -> RemoteAgent:
        resolver = CardResolver(
            self._http,
            headers=_reading(self._version),
            credentials=self._credentials,
            timeout=self._timeout,
            retry=self._retry,
        )
        try:
            return self._agent_of(await resolver.resolve(self._reference), resolver)
        except BaseException:
            if self._owns_http:
                await self._http.close()
            raise

    def _agent_of(self, resolved: ResolvedCard, resolver: CardResolver) -> RemoteAgent:
        card = resolved.card
        credentials = resolved.bind(self._credentials)

        def make(candidate: Candidate) -> Binding:
            attached = credentials.to_agent(candidate.origin, card)
            binding: Binding = home(candidate.binding)(
                self._http,
                attached.to(candidate.interface.url),
                dialect=versions.dialect(candidate.version),
                headers=attached.headers,
                timeout=self._timeout,
                idle=self._idle,
                numbered=declares(card, RESUMABLE_STREAMS),
                peer=resolved.server,
            )
            return binding

        choice = choose(
            card,
            self._binding,
            version=self._version,
            card_url=resolved.url,
            credentials=credentials,
            http=self._http,
        )
        activation = activate(card, self._extensions, idempotent=self._idempotent)
        return RemoteAgent(
            resolved,
            Interfaces(choice.candidates, make, name=card.name),
            CallContext(extensions=activation.uris),
            activation=activation,
            passed_over=[candidate.interface for candidate in choice.passed_over],
            refetch=lambda: resolver.resolve(self._reference),
            retry=self._retry,
            http=self._http if self._owns_http else None,
        )


def connect(
    reference: Reference,
    *,
    headers: Mapping[str, str] | None = None,
    bearer: str | None = None,
    api_key: str | None = None,
    binding: str | Sequence[str] = (),
    version: str = "",
    timeout: float | None = 30.0,
    stream_idle_timeout: float | None = 120.0,
    retries: int | Retry = 3,
    extensions: Sequence[Extension | AgentExtension | str] = (),
    idempotent: bool = True,
    insecure: bool = False,
    trust_origins: Sequence[str] = (),
    http: HttpTransport | None = None,
) -> Connection:
    """Connect to an agent: ``async with parley.connect("http://localhost:9999") as agent: ...``.

    ``reference`` is the agent's address (its card is looked for at the well-known path), its
    card's address, a card file, a card's JSON, or a card. ``headers`` go with every request;
    ``bearer`` and ``api_key`` to the agent, and to the card's server only if it asks for them.
    All of them go to the origin (scheme, host and port) of that address and to ``trust_origins``,
    such as ``["https://agents.example.com:8443"]``, and nowhere else, whatever a card or a redirect
    says. A card in the caller's own hands, in a file or as a value, says itself where they go.
    Extensions that a header names (``A2A-Extensions``) are asked for as ``extensions`` are.

    The interface to call is the first on the card that can be; when it cannot be reached the next
    is tried, and what works is kept (``RemoteAgent.interface``, ``RemoteAgent.version``; changes
    are logged). ``binding`` is the one binding to use (``"JSONRPC"``, ``"HTTP+JSON"``, ``"GRPC"``),
    or a list of those to prefer to all others. ``version`` is the one version of the protocol to
    speak (``"1.0"``, ``"0.3"``).

    ``timeout`` bounds every call that an agent answers at once, in seconds; how long to wait for
    a task is said where it is sent. A stream in which nothing arrives for
    ``stream_idle_timeout``, not even a sign of life, counts as cut. ``retries`` is how often a
    call is repeated that may be; 0 also keeps cut streams cut. ``idempotent``: messages are sent
    so that the agent answers repeats once, where it can. ``extensions`` are asked for, with
    what they depend on: objects, which take part in what is sent, or URIs alone.
    ``insecure`` switches the verification of TLS certificates off. ``http`` shares connections,
    and brings its own TLS settings.

    Opening raises ``CardNotFound``, ``CardInvalid``, ``NoCommonInterface``, ``OriginNotTrusted``,
    ``AuthenticationRequired``, ``Unreachable``. Raises ``ValueError`` for a version that is not
    spoken, for a header that the client sets itself, for a token or a key that no request can
    carry, and for what is no origin.
    """
    if isinstance(retries, int):
        retries = Retry(calls=retries, streams=4 * retries)
    headers, named = taken_apart(headers)
    return Connection(
        reference,
        headers=headers,
        bearer=bearer,
        api_key=api_key,
        binding=binding,
        version=_spoken(version),
        timeout=timeout,
        stream_idle_timeout=stream_idle_timeout,
        retry=retries,
        extensions=(*extensions, *named),
        idempotent=idempotent,
        insecure=insecure,
        trust_origins=trust_origins,
        http=http,
    )


def _reading(version: str) -> dict[str, str]:
    """Return the header by which agents of several versions choose the card to answer with.

    The one for callers of an older version leaves out what that does not have.
    """
    return {} if version == versions.DEFAULT_VERSION else {"A2A-Version": versions.LATEST}


def _spoken(version: str) -> str:
    known = versions.supported_for(version) if version else ""
    if known is None:
        raise ValueError(
            f"version {version!r} of the protocol is not spoken; "
            f"use one of {', '.join(versions.SUPPORTED_VERSIONS)}"
        )
    return known
