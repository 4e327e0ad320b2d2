"""``<agent>/envelope/card`` and ``<agent>/envelope/schema.json``."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from starlette.types import Receive, Scope, Send

from parley.envelope.declared import EnvelopeSettings
from parley.model.cards import AgentCard
from parley.model.errors import A2AError, ExtendedAgentCardNotConfiguredError, PermissionDeniedError
from parley.model.operations import BY_NAME, GetExtendedAgentCardRequest
from parley.model.service import ANONYMOUS, Caller
from parley.server.added_bindings import BindingPlace, SeenFromScope
from parley.server.address import BadAddress
from parley.server.cards.discovery import CardFile, card_file, is_fresh, validators
from parley.server.dispatch import Parameters
from parley.server.http.responses import (
    JSON,
    NO_STORE,
    Headers,
    refuse_method,
    reply_with_message,
    reply_without_body,
)
from parley.server.log import log_unforeseen
from parley.wire import versions

if TYPE_CHECKING:
    from parley.envelope.cards import EnvelopeCard
    from parley.envelope.server.guard import EnvelopeGuard

# -- resources --------------------------------------------------------------------------------
#
# The documents that come with the protocol: its JSON Schema, and vectors for signatures.


@cache
def schema() -> bytes:
    """Return the JSON Schema (2020-12) of messages; ``#/$defs/card`` is that of cards."""
    return _read("schema.json")


@cache
def vectors() -> bytes:
    """Return signed messages with their keys and canonical forms, and messages to refuse."""
    return _read("vectors.json")


def _read(name: str) -> bytes:
    return files(__package__).joinpath(name).read_bytes()


# -- card page --------------------------------------------------------------------------------


_MAX_FILES = 64
_SCHEMA_AGE = 3600


class EnvelopeCardPage:
    """Serves the envelope card of an agent, or of a tenant.

    ``dataClassification`` decides who may see it: of a public agent all, else callers who prove who
    they are, with the permissions that all callers need. Callers who get an extended card over A2A
    see its skills here too. The card of one caller is kept for nobody else: where cards may differ,
    caches are told so.
    """

    def __init__(
        self,
        place: BindingPlace,
        settings: EnvelopeSettings,
        guard: Callable[[], EnvelopeGuard],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        assert place.agent.card is not None
        self._guard = guard
        self._place = place
        self._served = place.served
        self._endpoint = place.agent
        self._settings = settings
        self._advertised = place.advertised
        self._tenant = place.tenant
        self._path = place.below
        self._clock = clock
        self._files: dict[str, CardFile] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer GET and HEAD, conditional ones too."""
        method = scope["method"]
        if method not in ("GET", "HEAD"):
            await refuse_method(scope, send, "GET, HEAD", "an envelope card is read with GET")
            return
        try:
            caller = await self._caller(scope)
            file = await self._file(scope, caller)
        except BadAddress as error:
            await reply_with_message(scope, send, 400, str(error), [NO_STORE])
            return
        except A2AError as error:
            headers = [NO_STORE, *self._vary(), *self._served.error_headers(error, scope)]
            await reply_with_message(scope, send, error.http_status, error.message, headers)
            return
        except Exception:
            failure = log_unforeseen("making an envelope card")
            await reply_with_message(scope, send, 500, failure.message, [NO_STORE])
            return
        kind = b"private" if self._differs else b"public"
        age = self._served.settings.card_max_age
        found: list[tuple[bytes, bytes]] = [
            (b"cache-control", b"%s, max-age=%d" % (kind, age)),
            *self._vary(),
            *validators(file),
        ]
        await _send_file(scope, send, file, found, JSON)

    @property
    def _differs(self) -> bool:
        """Whether who calls decides about the card."""
        return self._settings.data_classification != "public" or self._has_extended

    @property
    def _has_extended(self) -> bool:
        assert self._endpoint.card is not None
        return bool(self._endpoint.card(()).capabilities.extended_agent_card)

    def _vary(self) -> list[tuple[bytes, bytes]]:
        names = [*self._advertised.varies]
        if self._differs and self._served.varies:
            names.insert(0, self._served.varies)
        return [(b"vary", b", ".join(names))] if names else []

    async def _caller(self, scope: Scope) -> Caller:
        """Return the caller, if that matters. Raises ``A2AError`` for one who may not see it."""
        if not self._differs:
            return ANONYMOUS
        served, authorization = self._served, self._endpoint.authorization
        await served.dispatcher.start()
        caller = await self._place.caller(scope)
        if authorization is not None:
            caller = authorization.own_caller(caller)
            if self._settings.data_classification != "public":
                authorization.check_identity(caller)
        elif caller.granted:
            caller = ANONYMOUS
        return caller

    async def _file(self, scope: Scope, caller: Caller) -> CardFile:
        """Return the card of a caller. What all callers see is kept for each address."""
        address = self._advertised.address(scope)
        if caller.authenticated and self._has_extended:
            return card_file(await self._written(scope, caller), self._clock(), None)
        now = self._clock()
        file = self._files.pop(address, None)
        if file is None or now - file.made >= self._served.settings.card_max_age:
            file = card_file(await self._written(scope, caller), now, file)
        self._files[address] = file
        if len(self._files) > _MAX_FILES:
            del self._files[next(iter(self._files))]
        return file

    async def _written(self, scope: Scope, caller: Caller) -> bytes:
        from parley.envelope.cards import write_card
        from parley.envelope.server.card import CardAddresses, make_card

        endpoint = self._endpoint
        await self._served.dispatcher.start()
        card: AgentCard | None = None
        if caller.authenticated and self._has_extended:
            card = await self._extended(scope, caller)
        assert endpoint.card is not None
        base = self._advertised.address(scope).rstrip("/")
        made = make_card(
            card or endpoint.card(()),
            self._settings,
            key=endpoint.key,
            addresses=CardAddresses(base + self._path, self._advertised.server(scope)),
            authorization=endpoint.authorization,
            limits=() if endpoint.limits is None else endpoint.limits.declared,
            has_docs=self._served.settings.docs,
        )
        return write_card(await self._finished(made))

    async def _finished(self, made: EnvelopeCard) -> EnvelopeCard:
        times = self._guard().times
        return made if times is None else await times.stamped(made)

    async def _extended(self, scope: Scope, caller: Caller) -> AgentCard | None:
        """Return the extended card of a caller, ``None`` if there is none for it."""
        parameters = Parameters(
            version=versions.LATEST,
            addresses=SeenFromScope(self._served, scope),
            caller=caller,
            tenant=self._tenant,
            is_signed=True,  # a GET cannot be: credentials and permissions were checked
        )
        request = GetExtendedAgentCardRequest(tenant=self._tenant)
        try:
            operation = BY_NAME["GetExtendedAgentCard"]
            call = self._served.dispatcher.call(operation, parameters, lambda: request)
            found: AgentCard = await call.answer()
        except (ExtendedAgentCardNotConfiguredError, PermissionDeniedError):
            return None
        return found


class SchemaPage:
    """Serves the JSON Schema of messages and cards."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._schema: CardFile | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer GET and HEAD, conditional ones too."""
        if scope["method"] not in ("GET", "HEAD"):
            await refuse_method(scope, send, "GET, HEAD", "a schema is read with GET")
            return
        if self._schema is None:
            self._schema = card_file(schema(), self._clock(), None)
        cached = (b"cache-control", b"public, max-age=%d" % _SCHEMA_AGE)
        kind = (b"content-type", b"application/schema+json")
        found = [cached, *validators(self._schema)]
        await _send_file(scope, send, self._schema, found, kind)


async def _send_file(
    scope: Scope, send: Send, file: CardFile, headers: Headers, kind: tuple[bytes, bytes]
) -> None:
    headers = list(headers)
    if is_fresh(scope, file):
        await reply_without_body(send, 304, headers)
        return
    headers += [kind, (b"content-length", b"%d" % len(file.body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    body = file.body if scope["method"] == "GET" else b""
    await send({"type": "http.response.body", "body": body})
