"""From a reference to a remote agent."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from types import TracebackType
from typing import Any

from parley.client.agent import RemoteAgent
from parley.client.card import CardResolver, Reference, ResolvedCard
from parley.client.http import HttpTransport
from parley.client.interface import choose, credentials, declares, with_query
from parley.client.jsonrpc import JsonRpcBinding
from parley.client.retry import Retry
from parley.client.service import remote_service
from parley.model.extensions import IDEMPOTENT_SEND, RESUMABLE_STREAMS
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
        timeout: float | None,
        stream_idle_timeout: float | None,
        retry: Retry,
        extensions: Sequence[str],
        idempotent: bool,
        insecure: bool,
        http: HttpTransport | None,
    ) -> None:
        self._reference = reference
        self._headers = dict(headers or {})
        self._bearer = bearer
        self._api_key = api_key
        self._binding = binding
        self._timeout = timeout
        self._idle = stream_idle_timeout
        self._retry = retry
        self._extensions = frozenset(extensions)
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
        at_hand, _ = credentials(None, bearer=self._bearer, api_key=self._api_key)
        resolver = CardResolver(
            self._http,
            headers=self._headers,
            credentials=at_hand,
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
        interface = choose(card, self._binding, card_url=resolved.url)
        secret, query = credentials(card, bearer=self._bearer, api_key=self._api_key)
        idempotent = declares(card, IDEMPOTENT_SEND)
        binding = JsonRpcBinding(
            self._http,
            with_query(interface.url, query),
            dialect=versions.dialect(
                versions.of_interface(interface.protocol_version) or versions.LATEST
            ),
            headers={**self._headers, **secret},
            timeout=self._timeout,
            idle=self._idle,
            numbered=declares(card, RESUMABLE_STREAMS),
        )
        extensions = self._extensions
        if self._idempotent and idempotent:
            extensions |= {IDEMPOTENT_SEND}
        return RemoteAgent(
            resolved,
            interface,
            remote_service(
                binding,
                tenant=interface.tenant,
                capabilities=card.capabilities,
                retry=self._retry,
                idempotent=idempotent,
            ),
            CallContext(tenant=interface.tenant, extensions=extensions),
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
    timeout: float | None = 30.0,
    stream_idle_timeout: float | None = 120.0,
    retries: int | Retry = 3,
    extensions: Sequence[str] = (),
    idempotent: bool = True,
    insecure: bool = False,
    http: HttpTransport | None = None,
) -> Connection:
    """Connect to an agent: ``async with parley.connect("http://localhost:9999") as agent: ...``.

    ``reference`` is the agent's address (its card is looked for at the well-known path), its
    card's address, a card file, a card's JSON, or a card. ``headers`` go with every request;
    ``bearer`` and ``api_key`` to the agent, and to the card's server only if it asks for them.
    ``binding`` names bindings to prefer over the card's order.

    ``timeout`` bounds every call that an agent answers at once, in seconds; how long to wait for
    a task is said where it is sent. A stream in which nothing arrives for
    ``stream_idle_timeout``, not even a sign of life, counts as cut. ``retries`` is how often a
    call is repeated that may be; 0 also keeps cut streams cut. ``idempotent``: messages are sent
    so that the agent answers repeats once, where it can. ``extensions`` are URIs to ask for.
    ``insecure`` switches the verification of TLS certificates off. ``http`` shares connections,
    and brings its own TLS settings.

    Opening raises ``CardNotFound``, ``CardInvalid``, ``NoCommonInterface``,
    ``AuthenticationRequired``, ``Unreachable``.
    """
    if isinstance(retries, int):
        retries = Retry(calls=retries, streams=4 * retries)
    return Connection(
        reference,
        headers=headers,
        bearer=bearer,
        api_key=api_key,
        binding=binding,
        timeout=timeout,
        stream_idle_timeout=stream_idle_timeout,
        retry=retries,
        extensions=extensions,
        idempotent=idempotent,
        insecure=insecure,
        http=http,
    )
