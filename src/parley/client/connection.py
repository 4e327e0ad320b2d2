"""``connect``: from a reference to a card, to an interface, to a ``RemoteAgent``."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from parley.client.auth.authorizer import Authorizer, certificate_in, credentials_of
from parley.client.auth.credentials import Credential, Credentials
from parley.client.bindings.binding import Binding, binding_class, check_binding
from parley.client.bindings.http import HttpTransport, Tls, redacted
from parley.client.bindings.request_auth import split_headers
from parley.client.calls.service import FailoverBinding, Unopened
from parley.client.card.interface import Candidate, choose, declares
from parley.client.card.resolver import CardResolver, Reference, ResolvedCard, first_origin
from parley.client.card.trust import CardTrust, trust_of
from parley.client.card.verification import CardVerifier, ConnectionCards
from parley.client.errors import CardNotTrusted
from parley.client.extensions import activate
from parley.client.files.transfer import AgentFiles
from parley.client.origin import Origin
from parley.client.remote_agent import RemoteAgent
from parley.client.retry import Retry
from parley.extensions.installed import with_installed
from parley.model.cards import AgentExtension
from parley.model.extensions import RESUMABLE_STREAMS, Extension, collect_extensions
from parley.model.service import CallContext
from parley.security.egress import Egress
from parley.wire import versions

if TYPE_CHECKING:
    import ssl


class Connection(Unopened):
    """A connection that is not open yet. Use ``async with``, or ``await`` it and close the
    agent."""

    agent_type: type[RemoteAgent] = RemoteAgent

    def __init__(
        self,
        reference: Reference,
        *,
        path: str,
        auth: Credential | Sequence[Credential] | Literal[False] | None,
        headers: Mapping[str, str] | None,
        bearer: str | None,
        api_key: str | None,
        binding: str | Sequence[str],
        version: str,
        timeout: float | None,
        stream_idle_timeout: float | None,
        retries: int | Retry,
        extensions: Sequence[Extension | AgentExtension | str],
        idempotent: bool,
        insecure: bool,
        trust_origins: Sequence[str],
        allow_private_files: bool | Iterable[str],
        tls: ssl.SSLContext | Tls | None,
        proxy: str | None,
        egress: Egress | None,
        http: HttpTransport | None,
        trust: CardTrust | bool | None = None,
    ) -> None:
        trust = trust_of(trust)
        if path:
            reference = _below(reference, path)
        if isinstance(retries, int):
            retries = Retry(calls=retries, streams=4 * retries)
        headers, named = split_headers(headers)
        given = credentials_of(auth)
        if given and (bearer or api_key):
            raise ValueError("give auth, or bearer and api_key, but not both")
        certificate = certificate_in(given)
        is_insecure = insecure or (http is not None and (http.insecure or http.is_local))
        self._reference, credentials = Credentials.from_reference(
            reference,
            headers=headers,
            bearer=bearer,
            api_key=api_key,
            trust_origins=trust_origins,
            insecure=is_insecure,
            others="the credentials of auth"
            if given
            else "the client certificate" * has_certificate(tls),
        )
        self._trusted = tuple(map(Origin.parse, trust_origins))
        self._egress = Egress().adding(allow_private_files, option="allow_private_files")
        for name in (binding,) * bool(binding) if isinstance(binding, str) else binding:
            check_binding(name)
        self._binding = binding
        self._version = _supported(version)
        self._timeout = timeout
        self._idle = stream_idle_timeout
        self._retry = retries
        self._extensions = collect_extensions(with_installed((*extensions, *named)))
        self._idempotent = idempotent
        self._owns_http = http is None or http.closes_with_agent
        if http is not None and (tls is not None or proxy is not None or certificate):
            raise ValueError(
                "http has TLS settings and a proxy of its own: give them to it, as in "
                "HttpTransport(tls=Tls(ca=..., cert=..., key=...), proxy=...)"
            )
        if http is not None and egress is not None and not http.is_local:
            raise ValueError("http has an egress policy of its own: HttpTransport(egress=...)")
        if certificate is not None:
            if tls is not None and not isinstance(tls, Tls):
                raise ValueError("an SSLContext has its own certificate: give tls=Tls(ca=...)")
            tls = Tls(ca=tls.ca if tls else None, cert=certificate.cert, key=certificate.key)
        self._http = http or HttpTransport(insecure=insecure, tls=tls, proxy=proxy, egress=egress)
        requires_published = trust is not None and trust.required and not trust.is_pinned
        if requires_published and self._http.is_unverified:
            raise ValueError(
                "servers are not verified (insecure, or an SSLContext that takes any), so the "
                "published keys prove nothing: pin keys (CardTrust(keys=...)), or verify servers"
            )
        address = reference if isinstance(reference, str) and "{" not in reference else ""
        self._auth = Authorizer(
            credentials, given, http=self._http, address=redacted(address) if address else ""
        )
        if http is None:
            self._http.certificate_for = self._auth.may_see_certificate
        self._verifier = CardVerifier(trust, self._http)
        self._agent: RemoteAgent | None = None

    def __await__(self) -> Generator[Any, None, RemoteAgent]:
        return self._open().__await__()

    async def __aenter__(self) -> RemoteAgent:
        self._agent = await self._open()
        return self._agent

    async def __aexit__(self, *error: object) -> None:
        if self._agent is not None:
            await self._agent.aclose()

    async def _open(self) -> RemoteAgent:
        resolver = self._resolver()
        try:
            resolved = await self._resolve(resolver)
            self._bind(resolved)
            await self._auth.prepare()
            return self._make_agent(resolved, resolver)
        except BaseException:
            await self._verifier.aclose()
            await self._auth.aclose()
            if self._owns_http:
                await self._http.close()
            raise

    async def _resolve(self, resolver: CardResolver) -> ResolvedCard:
        """Return the current card. Raises ``CardNotTrusted``, and the errors of the resolver.

        A cached card may be signed with a removed key: it is fetched again.
        """
        before = resolver.requests
        resolved = await resolver.resolve(self._reference)
        try:
            return await self._verifier.verify(resolved)
        except CardNotTrusted:
            if not resolved.url or resolver.requests != before:
                raise
        resolver.forget()
        return await self._verifier.verify(await resolver.resolve(self._reference))

    def _resolver(self) -> CardResolver:
        return CardResolver(
            self._http,
            headers=_card_headers(self._version),
            credentials=self._auth.credentials,
            auth=self._auth,
            timeout=self._timeout,
            retry=self._retry,
        )

    def _bind(self, resolved: ResolvedCard) -> None:
        """Bind the credentials to the agent of a card."""
        card = resolved.card
        origin = resolved.given_origin or first_origin(card)
        self._auth.for_card(resolved.bind(self._auth.credentials), lambda: card, origin)

    def _make_agent(self, resolved: ResolvedCard, resolver: CardResolver) -> RemoteAgent:
        card, auth = resolved.card, self._auth
        if not auth.is_bound:
            self._bind(resolved)
        credentials = auth.credentials

        def make_binding(candidate: Candidate) -> Binding:
            parameters = credentials.agent_parameters(candidate.origin, card)
            binding: Binding = binding_class(candidate.binding)(
                self._http,
                parameters.add_to(candidate.interface.url),
                dialect=versions.dialect(candidate.version),
                headers=parameters.headers,
                timeout=self._timeout,
                idle=self._idle,
                numbered=declares(card, RESUMABLE_STREAMS),
                peer=resolved.server,
                auth=auth.at(candidate.origin),
            )
            cards.keep_received(binding)
            return binding

        cards = ConnectionCards(resolved, self._verifier)
        choice = choose(
            card,
            self._binding,
            version=self._version,
            card_url=resolved.url,
            credentials=credentials,
            http=self._http,
        )
        activation = activate(card, self._extensions, idempotent=self._idempotent)
        agent: RemoteAgent
        auth.read_card_with(lambda: agent.card)
        files = AgentFiles(
            self._http,
            auth,
            card=lambda: agent.card,
            base_url=resolved.url or choice.candidates[0].interface.url,
            origins=_origins_of(resolved, choice.candidates, self._trusted),
            egress=self._egress,
            retry=self._retry,
            idle=self._timeout,
        )
        agent = self.agent_type(
            resolved,
            FailoverBinding(choice.candidates, make_binding, name=card.name),
            CallContext(extensions=activation.uris),
            activation=activation,
            skipped_interfaces=[candidate.interface for candidate in choice.skipped],
            refetch=lambda: self._resolve(resolver),
            cards=cards,
            retry=self._retry,
            files=files,
            auth=auth,
            http=self._http if self._owns_http else None,
        )
        return agent


def connect(
    reference: Reference,
    *,
    path: str = "",
    auth: Credential | Sequence[Credential] | Literal[False] | None = None,
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
    allow_private_files: bool | Iterable[str] = False,
    tls: ssl.SSLContext | Tls | None = None,
    proxy: str | None = None,
    egress: Egress | None = None,
    http: HttpTransport | None = None,
    trust: CardTrust | bool | None = None,
) -> Connection:
    """Connect to an agent: ``async with parley.connect("http://localhost:9999") as agent: ...``.

    ``reference`` is the agent's address (with its card at the well-known path), its card's address,
    a card file, a card's JSON, or a card. It may also be an ``Agent`` or an ASGI app
    (``parley.connect(agent)``): the app is called in this process without a socket. Unless it is
    already running, it is started, and stopped when the connection is closed. ``path`` is the path
    of an agent that shares an address with others.

    ``auth`` has credentials (``parley.client.auth``), one or a list: the ones that the card
    requires are sent, and tokens are obtained from the card's issuer and renewed. Without it the
    login for the agent's origin is used (``parley auth login``), or the credentials in the
    environment for it (``PARLEY_AUTH_ORIGIN``); ``False`` uses neither. ``headers`` are sent with
    every request; ``bearer`` and ``api_key`` are sent to the agent, and to the card's server only
    if it asks for them. All credentials are sent only to the origin (scheme, host and port) of the
    reference and to ``trust_origins``, such as ``["https://agents.example.com:8443"]``, whatever a
    card or a redirect says, and never to another machine without encryption. A card that the caller
    passes as a file or a value decides about the origins itself. Extensions in a header
    (``A2A-Extensions``) are requested like ``extensions``.

    The client calls the first usable interface on the card. If that is unreachable it tries the
    next, and keeps the one that works (``RemoteAgent.interface``, ``RemoteAgent.version``; changes
    are logged). ``binding`` is the only binding to use (``"JSONRPC"``, ``"HTTP+JSON"``,
    ``"GRPC"``), or a list of preferred ones. ``version`` is the only protocol version to use
    (``"1.0"``, ``"0.3"``).

    ``timeout`` bounds every call that an agent answers at once, in seconds; ``send`` and ``wait``
    have their own time limits for tasks. A stream without a byte for ``stream_idle_timeout``
    seconds, not even a keep-alive, counts as broken. ``retries`` is the number of retries of a call
    that is safe to repeat; with 0 a broken stream is not resumed either. ``idempotent``: messages
    ask the agent to answer repeats only once, if it supports that. ``extensions`` are requested
    with their dependencies: objects, which may change messages, or only URIs.

    ``tls`` has trusted authorities and a client certificate (``Tls``), or is an ``SSLContext``;
    ``proxy`` is the address of an HTTP proxy. ``insecure`` turns the verification of TLS
    certificates off, and lets credentials be sent unencrypted. ``egress`` is a policy for the
    called addresses (``parley.security.Egress``), for references from foreign data. ``http`` shares
    connections and has its own settings for all of this.

    Files that the agent refers to at other origins are fetched without credentials, and only from
    public addresses. ``allow_private_files`` allows private networks too, or the hosts and networks
    of a list (``["files.internal", "10.1.0.0/16"]``). An agent on this machine may name private
    addresses without it.

    ``trust=True`` requires that the card is signed with a key that is published at its own origin;
    a ``CardTrust`` configures pinned keys, other origins and algorithms. It applies to every card
    of the connection, including the extended card. Without it signatures are not verified.

    Opening raises ``CardNotFound``, ``CardInvalid``, ``CardNotTrusted``, ``NoCommonInterface``,
    ``OriginNotTrusted``, ``NotEncrypted``, ``AuthenticationRequired``, ``Unreachable``. Raises
    ``ValueError`` for an unknown binding, an unsupported version, a header that only the client may
    set, an invalid token or key, and an invalid origin.
    """
    return Connection(
        reference,
        path=path,
        auth=auth,
        headers=headers,
        bearer=bearer,
        api_key=api_key,
        binding=binding,
        version=version,
        timeout=timeout,
        stream_idle_timeout=stream_idle_timeout,
        retries=retries,
        extensions=extensions,
        idempotent=idempotent,
        insecure=insecure,
        trust_origins=trust_origins,
        allow_private_files=allow_private_files,
        tls=tls,
        proxy=proxy,
        egress=egress,
        http=http,
        trust=trust,
    )


def _origins_of(
    resolved: ResolvedCard, candidates: Sequence[Candidate], trusted: Sequence[Origin]
) -> list[Origin]:
    """Return the origins of the agent: of its card, of its interfaces, and trusted by the
    caller."""
    fetched = Origin.of(resolved.url) if resolved.url else None
    own = (fetched, resolved.given_origin, *(candidate.origin for candidate in candidates))
    return [*(origin for origin in own if origin is not None), *trusted]


def has_certificate(tls: Any) -> bool:
    """Return whether TLS settings certainly have a client certificate."""
    return isinstance(tls, Tls) and tls.cert is not None


def _below(reference: Reference, path: str) -> str:
    """Return the address of an agent at a path. Raises ``ValueError``."""
    if not isinstance(reference, str) or reference.lstrip().startswith("{"):
        raise ValueError("path is for an address or an app; a card names its interfaces itself")
    if "?" in reference or "#" in reference:
        raise ValueError(f"path is for an address without a query, not {redacted(reference)!r}")
    return f"{reference.strip().rstrip('/')}/{path.strip('/')}"


def _card_headers(version: str) -> dict[str, str]:
    """Return the header by which an agent of several versions chooses the card.

    The card for an older version lacks the members that this version does not define.
    """
    return {} if version == versions.DEFAULT_VERSION else {"A2A-Version": versions.LATEST}


def _supported(version: str) -> str:
    known = versions.supported_for(version) if version else ""
    if known is None:
        raise ValueError(
            f"version {version!r} of the protocol is not supported; "
            f"use one of {', '.join(versions.SUPPORTED_VERSIONS)}"
        )
    return known
