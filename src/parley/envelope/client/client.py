"""The client of the envelope protocol: ``connect``, and ``EnvelopeClient``."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, Unpack
from urllib.parse import urlsplit

import msgspec

from parley.client.auth.credentials import Credential
from parley.client.bindings.http import Tls
from parley.client.bindings.request_auth import join_items, list_items
from parley.client.card.interface import choose
from parley.client.card.trust import CardTrust
from parley.client.connection import Connection
from parley.client.errors import (
    AuthenticationRequired,
    CardInvalid,
    CardNotFound,
    Timeout,
    timeout_error,
)
from parley.client.origin import Origin, http_address
from parley.envelope.answers import AnswerEnd, Answers, is_broadcast, message
from parley.envelope.cards import EnvelopeCard, read_card, write_card
from parley.envelope.client.binding import EnvelopeConnection
from parley.envelope.client.session import (
    EnvelopeAnswer,
    EnvelopeEvent,
    EnvelopeFailed,
    EnvelopeIdentity,
    LinkEndpoint,
    LinkSettings,
    RequestHandler,
    payload_of,
)
from parley.envelope.messages import (
    BINDING,
    OPERATION_PREFIX,
    Envelope,
    MessageType,
    Priority,
    RequestMetadata,
    RequestPayload,
    RoutingStrategy,
    Source,
    SubType,
    Target,
    envelope_error,
)
from parley.envelope.signatures import EnvelopeKey
from parley.host.connecting import reference_of
from parley.model.cards import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    HTTPAuthSecurityScheme,
    SecurityScheme,
)
from parley.model.errors import A2AError, InvalidAgentResponseError
from parley.model.extensions import IDEMPOTENT_SEND
from parley.model.operations import BY_NAME

if TYPE_CHECKING:
    import ssl

    from parley.client.bindings.http import HttpTransport
    from parley.security.egress import Egress


REGISTER = "registry.register"
"""The action that registers an agent with the server at the other end."""


class HeartbeatAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a HEARTBEAT: its payload, and how long it took, in seconds."""

    payload: dict[str, Any]
    round_trip: float


class RequestOptions(TypedDict, total=False):
    """The options of every REQUEST.

    ``priority`` orders this side's own requests that wait. ``task_id`` and ``context_id`` continue
    a task or a conversation. ``target`` is the id of another agent that the server knows, or a
    ``Target``. The same ``message_id`` again gets the same task. ``service_parameters`` are those
    of A2A (specification §3.2.6).
    """

    priority: str
    context_id: str
    task_id: str
    target: str | Target
    message_id: str
    service_parameters: Mapping[str, str]


_NO_METADATA = RequestMetadata()


class EnvelopeStream(AsyncIterator[EnvelopeEvent]):
    """The events of one request, for an ``async for`` loop. Close it if you leave early.

    ``task_id`` and ``context_id`` are known from the first event on that has them.
    """

    def __init__(self, answers: Answers, request: Envelope, timeout: float | None) -> None:
        self._answers = answers
        self._end = AnswerEnd(request)
        self._is_broadcast = is_broadcast(request)
        self._timeout = timeout
        self._ends = _time_in(timeout)
        self.task_id = ""
        self.context_id = ""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> EnvelopeEvent:
        """Return the next event. Raises ``EnvelopeFailed``, ``Timeout``, ``ClientError``."""
        try:
            async with asyncio.timeout_at(self._ends) as limit:
                answer = await anext(self._answers)
        except TimeoutError:
            await self.aclose()
            if not limit.expired():
                raise
            raise timeout_error(self._timeout, self.task_id) from None
        is_of_one = self._is_broadcast and answer.message.type == MessageType.EVENT
        payload = payload_of(answer, raises=not is_of_one)
        self.task_id = payload.metadata.task_id or self.task_id
        self.context_id = payload.metadata.context_id or self.context_id
        return EnvelopeEvent(
            results=payload.results,
            status=payload.status,
            metadata=payload.metadata,
            message=answer,
            is_final=self._end.is_last(answer),
        )

    async def aclose(self) -> None:
        """Stop reading; the task continues. Idempotent."""
        await self._answers.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()


class EnvelopeClient:
    """An open connection to an agent by the envelope protocol (``parley.envelope.connect``).

    Requests survive connections: an unanswered one is sent again, with the same ``messageId``, and
    a stream continues after its last event.
    """

    def __init__(
        self,
        connection: EnvelopeConnection,
        *,
        card: EnvelopeCard | None = None,
        on_close: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.connection = connection
        self.card = card
        self._on_close = on_close

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    @property
    def source(self) -> Source:
        """The source of this side's messages."""
        return self.connection.identity.source

    @property
    def uses_socket(self) -> bool:
        """Return whether messages use a WebSocket now, instead of HTTP."""
        return self.connection.uses_socket

    async def request(
        self,
        action: str,
        parameters: Any = None,
        *,
        sub_type: str = SubType.QUERY,
        timeout: float | None = None,
        **options: Unpack[RequestOptions],
    ) -> EnvelopeAnswer:
        """Send a REQUEST and return its RESPONSE: the results of a query, or that a command began.

        ``action`` is the id of a skill, or an operation of A2A (``a2a.GetTask``). ``timeout`` is in
        seconds, for all of it: the agent gets the rest. ``RequestOptions`` has
        the options.

        Raises ``EnvelopeFailed`` for an error of the agent, ``Timeout``, and ``ClientError``.
        """
        _check_sub_type(sub_type)
        given = self._request(action, parameters, sub_type, **options)
        ends = _time_in(timeout)
        try:
            async with asyncio.timeout_at(ends) as limit:
                async with aclosing(self._ask(given, ends)) as answers:
                    async for answer in answers:
                        if answer.message.type == MessageType.RESPONSE:
                            payload = payload_of(answer)
                            return EnvelopeAnswer(
                                results=payload.results,
                                status=payload.status,
                                metadata=payload.metadata,
                                message=answer,
                            )
        except TimeoutError:
            if not limit.expired():
                raise
            raise timeout_error(timeout, options.get("task_id", "")) from None
        raise Timeout("the agent sent no answer")

    def stream(
        self,
        action: str,
        parameters: Any = None,
        *,
        sub_type: str = SubType.QUERY,
        timeout: float | None = None,
        after: int | None = None,
        **options: Unpack[RequestOptions],
    ) -> EnvelopeStream:
        """Send a REQUEST and return its EVENTs as they arrive; the last EVENT is final.

        The final event of a query is its RESPONSE, with all results; a command begins with a
        RESPONSE with ``accepted``. ``after`` continues after an event with this number, of the same
        ``message_id``. The other options are as in ``request``.
        """
        _check_sub_type(sub_type)
        metadata = RequestMetadata(stream=sub_type == SubType.QUERY, after=after)
        given = self._request(action, parameters, sub_type, metadata, **options)
        return EnvelopeStream(self._ask(given, _time_in(timeout)), given, timeout)

    async def notify(
        self, action: str, parameters: Any = None, **options: Unpack[RequestOptions]
    ) -> None:
        """Send a REQUEST without an answer. Raises ``ClientError`` if it could not be sent."""
        given = self._request(action, parameters, SubType.NOTIFICATION, **options)
        async with aclosing(self._ask(given, None)) as answers:
            async for answer in answers:  # over HTTP a rejection has an answer
                payload_of(answer)

    async def heartbeat(self, payload: Mapping[str, Any] | None = None) -> HeartbeatAnswer:
        """Send a HEARTBEAT and return its answer. Raises ``ClientError``."""
        clock = asyncio.get_running_loop().time
        began = clock()
        answer = await self.connection.heartbeat(dict(payload or {}))
        said: Any = {}
        if answer is not None and isinstance(answer.payload, msgspec.Raw):
            said = msgspec.json.decode(answer.payload)
        return HeartbeatAnswer(
            payload=said if isinstance(said, dict) else {}, round_trip=clock() - began
        )

    async def register(self, card: EnvelopeCard | Mapping[str, Any]) -> EnvelopeAnswer:
        """Register an agent with the server at the other end, under this side's id.

        It is registered again after every reconnect, and the WebSocket is kept open. With
        ``on_request`` set before, REQUESTs to the agent arrive over this connection. Raises
        ``EnvelopeFailed`` for a rejected card.
        """
        members = msgspec.json.decode(write_card(card)) if isinstance(card, EnvelopeCard) else card
        accepts = self.connection.inbound.handler is not None
        parameters = {"card": dict(members), "acceptsRequests": accepts}
        answer = await self.request(REGISTER, parameters)
        self.connection.greet_with(lambda: self._request(REGISTER, parameters, SubType.QUERY))
        self.connection.keep()
        return answer

    def on_request(self, handler: RequestHandler) -> RequestHandler:
        """Answer the REQUESTs that arrive over this connection; usable as a decorator.

        The handler is a function of an ``IncomingRequest``. It returns results (a list, or one JSON
        value), and raises ``A2AError`` to reject the request; an async generator sends its items as
        EVENTs. A repeated REQUEST gets its first answer, unless that was a failure. At most 64 are
        handled at a time. The WebSocket is kept open.
        """
        self.connection.inbound.handler = handler
        self.connection.keep()
        return handler

    def messages(self) -> AsyncIterator[Envelope]:
        """Return unasked messages: EVENTs that answer nothing, HEARTBEATs, REQUESTs.

        The WebSocket is kept open. Of more than 1,000 unread messages, or 16 MiB, the oldest are
        dropped.
        """
        self.connection.keep()
        return self.connection.messages()

    async def aclose(self) -> None:
        """Close the connection; running requests fail with ``ConnectionClosed``. Idempotent."""
        on_close, self._on_close = self._on_close, None
        try:
            await self.connection.close()
        finally:
            if on_close is not None:
                await on_close()

    async def _ask(self, request: Envelope, deadline: float | None) -> Answers:
        answers = self.connection.ask(request, deadline=deadline, repeats=may_repeat(request))
        async with aclosing(answers):
            try:
                async for answer in answers:
                    yield answer
            except InvalidAgentResponseError:
                raise
            except A2AError as error:  # the answer to the handshake
                raise EnvelopeFailed(envelope_error(error)) from None

    def _request(
        self,
        action: str,
        parameters: Any,
        sub_type: str,
        metadata: RequestMetadata = _NO_METADATA,
        *,
        priority: str = Priority.NORMAL,
        context_id: str = "",
        task_id: str = "",
        target: str | Target = "",
        message_id: str = "",
        service_parameters: Mapping[str, str] | None = None,
    ) -> Envelope:
        if priority not in tuple(Priority):
            raise ValueError(f"priority must be one of {', '.join(Priority)}, not {priority!r:.60}")
        if isinstance(target, str):
            target = Target(agent_id=target)
        elif target.routing_strategy not in tuple(RoutingStrategy):
            known = ", ".join(RoutingStrategy)
            raise ValueError(
                f"routing_strategy must be one of {known}, not {target.routing_strategy!r:.60}"
            )
        given = dict(service_parameters or {})
        if action in _SENDS:  # the agent answers a repeated message once
            name = next((name for name in given if name.lower() == "a2a-extensions"), _EXTENSIONS)
            given[name] = join_items(list_items(given.get(name, "")), (IDEMPOTENT_SEND,))
        metadata = msgspec.structs.replace(
            metadata, context_id=context_id, task_id=task_id, service_parameters=given
        )
        return message(
            MessageType.REQUEST,
            RequestPayload(
                action=action,
                parameters={} if parameters is None else parameters,
                metadata=metadata,
            ),
            source=self.source,
            target=target,
            sub_type=sub_type,
            priority=priority,
            message_id=message_id,
        )


def _time_in(seconds: float | None) -> float | None:
    return None if seconds is None else asyncio.get_running_loop().time() + seconds


def may_repeat(request: Envelope) -> bool:
    """Return whether a request may be sent again though it may have been processed.

    The same message to a skill gets the same task. Operations that change nothing and
    messages are repeated.
    """
    assert isinstance(request.payload, RequestPayload)
    action = request.payload.action
    if not action.startswith(OPERATION_PREFIX) or action in _SENDS:
        return True
    operation = BY_NAME.get(action.removeprefix(OPERATION_PREFIX))
    return operation is not None and operation.safe


_SENDS = frozenset(f"{OPERATION_PREFIX}{name}" for name in ("SendMessage", "SendStreamingMessage"))
_EXTENSIONS = "A2A-Extensions"


def _check_sub_type(sub_type: str) -> None:
    if sub_type not in (SubType.QUERY, SubType.COMMAND):
        raise ValueError(
            f"sub_type is query or command here, not {sub_type!r:.60}; notifications are sent "
            "with notify"
        )


logger = logging.getLogger(__name__)

MAX_CARD = 1024 * 1024
ENDPOINT = "/envelope"
"""The end of the address of an envelope interface. Other HTTP addresses belong to A2A cards."""


class EnvelopeOpening(Connection):
    """An envelope connection to be opened: ``async with`` it, or ``await`` it and close it."""

    def __init__(
        self, reference: Any, *, identity: EnvelopeIdentity, link: LinkSettings, **options: Any
    ) -> None:
        self._envelope_card = card_in(reference)
        self._is_given_card = self._envelope_card is not None
        self._direct = ""
        if self._envelope_card is not None:
            reference = _addresses(self._envelope_card)[0]
        elif isinstance(reference, str) and is_endpoint(reference):
            reference = self._direct = http_address(reference.strip())
        super().__init__(reference, binding=BINDING, version="", **options)
        if self._direct and isinstance(self._reference, str):
            self._direct = self._reference  # without a user and a password
        self._identity = identity
        self._link = link
        self._client: EnvelopeClient | None = None

    def __await__(self) -> Generator[Any, None, EnvelopeClient]:  # type: ignore[override]
        return self._open_client().__await__()

    async def __aenter__(self) -> EnvelopeClient:  # type: ignore[override]
        self._client = await self._open_client()
        return self._client

    async def __aexit__(self, *error: object) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def _open_client(self) -> EnvelopeClient:
        connection: EnvelopeConnection | None = None
        try:
            endpoints = await self._endpoints()
            await self._learn_target(endpoints[0])
            connection = EnvelopeConnection(self._http, endpoints, self._identity, self._link)
            await connection.open()
        except BaseException:
            if connection is not None:
                await connection.close()
            await self._release()
            raise
        return EnvelopeClient(connection, card=self._envelope_card, on_close=self._release)

    async def _release(self) -> None:
        await self._verifier.aclose()
        await self._auth.aclose()
        if self._owns_http:
            await self._http.close()

    async def _learn_target(self, endpoint: LinkEndpoint) -> None:
        """Find the id of the agent if signed messages need it: from its envelope card."""
        if self._envelope_card is None and self._identity.signs:
            try:
                self._envelope_card = await self._fetched_card(f"{endpoint.url}/card")
            except (CardNotFound, CardInvalid, AuthenticationRequired) as error:
                logger.info("envelope: the id of the agent is not known: %s", error)
        if self._envelope_card is not None:
            self._identity.target_id = self._envelope_card.agent_info.id

    async def _endpoints(self) -> list[LinkEndpoint]:
        if self._direct.endswith(f"{ENDPOINT}/card"):
            self._envelope_card = await self._fetched_card(self._direct)
        if self._envelope_card is not None:
            return await self._of_envelope_card(self._envelope_card)
        if self._direct:
            origin = Origin.of(self._direct)
            credentials = self._auth.credentials.for_origin(origin)
            card = _stand_in(self._direct, ())
            self._auth.for_card(credentials, lambda: card, origin)
            return [self._endpoint(self._direct, card)]
        return await self._of_a2a_card()

    async def _of_a2a_card(self) -> list[LinkEndpoint]:
        resolved = await self._resolve(self._resolver())
        self._bind(resolved)
        await self._auth.prepare()
        chosen = choose(
            resolved.card,
            BINDING,
            card_url=resolved.url,
            credentials=self._auth.credentials,
            http=self._http,
        )
        return [self._endpoint(each.interface.url, resolved.card) for each in chosen.candidates]

    async def _of_envelope_card(self, card: EnvelopeCard) -> list[LinkEndpoint]:
        stand_in = _stand_in(card.agent_info.name or card.agent_info.id, card.security.auth_methods)
        credentials = self._auth.credentials
        named = Origin.of(self._direct) if self._direct else None
        credentials = (
            credentials.for_any_origin() if self._is_given_card else credentials.for_origin(named)
        )
        urls = _addresses(card)
        self._auth.for_card(credentials, lambda: stand_in, named or Origin.of(urls[0]))
        await self._auth.prepare()
        allowed = [url for url in urls if self._auth.credentials.allows(Origin.of(url))]
        if not allowed:
            raise self._auth.credentials.refusal(stand_in.name, [Origin.of(urls[0])])
        return [self._endpoint(url, stand_in) for url in allowed]

    def _endpoint(self, url: str, card: AgentCard) -> LinkEndpoint:
        origin = _origin_of(url)
        parameters = self._auth.credentials.agent_parameters(origin, card)
        return LinkEndpoint(
            parameters.add_to(http_address(url)),
            headers=parameters.headers,
            auth=self._auth.at(origin),
        )

    async def _fetched_card(self, url: str) -> EnvelopeCard:
        """Return the envelope card at an address. Raises ``CardNotFound``, ``CardInvalid``."""
        from parley.client.bindings.request_auth import refusal_in

        if not self._auth.is_bound:
            self._auth.for_origin(Origin.of(url))
        credentials = self._auth.credentials
        headers = {"Accept": "application/json", **credentials.public}
        given = credentials.card_headers(url, challenged=False)
        reply = await self._http.get(
            url, {**headers, **given}, timeout=self._timeout, limit=MAX_CARD
        )
        if reply.status in (401, 403):
            found = await self._auth.card_parameters(refusal_in(reply.status, reply.headers), url)
            given = {**credentials.card_headers(url, challenged=True), **found}
            reply = await self._http.get(
                url, {**headers, **given}, timeout=self._timeout, limit=MAX_CARD
            )
        if reply.status != 200:
            raise CardNotFound(f"{url} answered {reply.status}, and no envelope card")
        try:
            return read_card(reply.body)
        except A2AError as error:
            raise CardInvalid(f"{url} is not an envelope card: {error.message}") from None


def is_endpoint(reference: str) -> bool:
    """Return whether a reference is the address of an envelope interface, or of its card."""
    parts = urlsplit(reference.strip())
    if parts.scheme in ("ws", "wss"):
        return True
    path = parts.path.rstrip("/")
    return parts.scheme in ("http", "https") and path.endswith((ENDPOINT, f"{ENDPOINT}/card"))


def card_in(reference: Any) -> EnvelopeCard | None:
    """Return the envelope card in a reference: a value, a mapping, JSON, or a JSON file."""
    if isinstance(reference, str) and not reference.lstrip().startswith("{"):
        return None
    if isinstance(reference, AgentCard):
        return None

    if isinstance(reference, EnvelopeCard):
        return reference
    if isinstance(reference, os.PathLike):
        with open(reference, "rb") as file:
            reference = file.read(MAX_CARD)
    is_card = (
        "agentInfo" in reference
        if isinstance(reference, Mapping | str)
        else isinstance(reference, bytes) and b'"agentInfo"' in reference
    )
    if not is_card:
        return None
    try:
        return read_card(reference)
    except A2AError as error:
        raise CardInvalid(f"this is not an envelope card: {error.message}") from None


def _addresses(card: EnvelopeCard) -> list[str]:
    """Return the addresses of an agent, each once, with the scheme of HTTP.

    After an address with TLS, addresses without TLS are left out. Raises ``CardInvalid``.
    """
    given = [url for url in (card.endpoints.primary, card.endpoints.backup) if url]
    found = list(dict.fromkeys(str(http_address(url)) for url in given if _origin_of(url)))
    if not found:
        raise CardInvalid(f"the envelope card of {card.agent_info.id[:100]!r} has no endpoint")
    is_encrypted = found[0].startswith("https:")
    return [url for url in found if url.startswith("https:") or not is_encrypted]


def _origin_of(url: str) -> Origin:
    try:
        return Origin.of(http_address(url))
    except ValueError as error:
        raise CardInvalid(f"the endpoint {url[:200]!r} is not {error}") from None


def _stand_in(name: str, auth_methods: tuple[str, ...]) -> AgentCard:
    """Return an A2A card with the accepted credentials of an agent that has no card."""
    schemes = {}
    if "bearer-token" in auth_methods:
        schemes["bearer"] = SecurityScheme(
            http_auth_security_scheme=HTTPAuthSecurityScheme(scheme="bearer")
        )
    return AgentCard(
        name=name,
        description="",
        version="",
        supported_interfaces=(
            AgentInterface(url="-", protocol_binding=BINDING, protocol_version=""),
        ),
        capabilities=AgentCapabilities(),
        security_schemes=schemes,
        default_input_modes=(),
        default_output_modes=(),
        skills=(),
    )


def connect(
    agent: Any,
    /,
    *,
    agent_id: str = "",
    agent_type: str = "",
    key: EnvelopeKey | None = None,
    agent_key: EnvelopeKey | None = None,
    transport: Literal["auto", "socket", "http"] = "auto",
    heartbeat: float | None = None,
    settings: LinkSettings | None = None,
    path: str = "",
    auth: Credential | Sequence[Credential] | Literal[False] | None = None,
    headers: Mapping[str, str] | None = None,
    bearer: str | None = None,
    api_key: str | None = None,
    timeout: float | None = 30.0,
    insecure: bool = False,
    trust_origins: Sequence[str] = (),
    tls: ssl.SSLContext | Tls | None = None,
    proxy: str | None = None,
    egress: Egress | None = None,
    http: HttpTransport | None = None,
    trust: CardTrust | bool | None = None,
) -> EnvelopeOpening:
    """Connect to an agent by the envelope protocol: ``async with`` it.

    ``agent`` is the address of an agent (its A2A card names the interface), an address that ends
    with ``/envelope`` or begins with ``ws://`` or ``wss://`` (the interface itself), the address of
    an envelope card (``.../envelope/card``), such a card, an A2A card, an ``Agent`` or an ASGI app
    of this process, or a result of ``parley.find``. Of an envelope card the primary endpoint
    is used, then the backup.

    ``agent_id`` names this side: the id of the credentials, or the owner of the ``key``. Without
    it, the agent says which id the credentials have; a caller without credentials gets an id by
    chance. ``key`` signs every message; with ``agent_key`` only answers count that this key signed.

    A WebSocket is used where it can be had, else HTTP (``transport="socket"`` or ``"http"`` allows
    one only); a WebSocket is tried again later. ``heartbeat`` is the interval of HEARTBEATs in
    seconds; ``settings`` has this and more: limits, pauses, how often a request is sent again.

    ``timeout`` bounds fetching cards. The other options are as in ``parley.connect``.

    Opening raises what ``parley.connect`` raises, and ``SocketRefused`` where only a WebSocket is
    allowed and none is opened. Raises ``ValueError`` for settings that contradict each other.
    """
    given = settings or LinkSettings(transport=transport, heartbeat=heartbeat or 30.0)
    if settings is not None and (transport != "auto" or heartbeat is not None):
        raise ValueError("settings have transport and heartbeat: give them there, or alone")
    options: dict[str, Any] = {
        "auth": auth,
        "headers": headers,
        "bearer": bearer,
        "api_key": api_key,
        "timeout": timeout,
        "insecure": insecure,
        "trust_origins": trust_origins,
        "tls": tls,
        "proxy": proxy,
        "egress": egress,
        "http": http,
        "trust": trust,
    }
    identity = EnvelopeIdentity(agent_id, agent_type, key=key, agent_key=agent_key)
    reference = agent if isinstance(agent, EnvelopeCard) else reference_of(agent, options)
    return EnvelopeOpening(
        reference,
        identity=identity,
        link=given,
        path=path,
        stream_idle_timeout=None,
        retries=3,
        extensions=(),
        idempotent=True,
        allow_private_files=False,
        **options,
    )
