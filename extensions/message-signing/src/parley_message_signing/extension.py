"""The extension: signs what an agent or a client sends, and verifies what an agent receives."""

from __future__ import annotations

import copy
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from parley import CallContext
from parley.extensions import Extension
from parley.model.cards import AgentCard
from parley.model.errors import InvalidParamsError
from parley.model.operations import SendMessageRequest
from parley.model.parts import Message
from parley.model.tasks import TaskArtifactUpdateEvent
from parley.security.egress import Egress
from parley.security.signing.keys import SigningKeys
from parley.store.fold import CONTINUES
from parley_message_signing.signed import (
    START,
    URI,
    Signature,
    artifact_payload,
    grown,
    message_payload,
)
from parley_message_signing.verifying import Keys, SignatureInvalid, Verdict, verified

MOST_GROWING = 10_000
"""The artifacts in progress whose digests are kept; the oldest is forgotten, and ends unsigned."""


class MessageSigning(Extension):
    """Messages and artifacts are signed.

    ``keys`` sign: a file of signing keys, or ``SigningKeys``; by default those of the environment
    (``PARLEY_SIGNING_KEYS``), and without any, nothing is signed. ``jku`` is where the public keys
    are published; the card has them too.

    ``trust`` is a JWK Set of the callers' public keys, ``trusted_key_sets`` are addresses of such
    sets. With either, an agent refuses messages that no such key signed, that were signed more than
    ``window`` seconds ago (or ahead), or that it has had already, on any replica and before a
    restart. ``audience`` names the agent: messages for another one are refused.

    Raises ``ValueError`` for keys that cannot be used.
    """

    uri = URI
    description = "Messages and artifacts are signed: detached JWS over RFC 8785."
    data = Signature

    def __init__(
        self,
        keys: SigningKeys | str | Path | None = None,
        *,
        jku: str = "",
        trust: Mapping[str, Any] | None = None,
        trusted_key_sets: Iterable[str] = (),
        audience: str = "",
        window: float = 300.0,
        required: bool = False,
        egress: Egress | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._keys = SigningKeys.load(keys)
        addresses = tuple(trusted_key_sets)
        self._trusted = Keys(trust, addresses, egress=egress) if trust or addresses else None
        self._jku, self._audience = jku, audience
        self._window, self._clock = window, clock
        self._growing: OrderedDict[tuple[str, str], str] = OrderedDict()
        params: dict[str, Any] = {"windowSeconds": window, "verifies": self._trusted is not None}
        if self._keys is not None:
            params["keys"] = self._keys.published
        params |= {name: each for name, each in (("jku", jku), ("audience", audience)) if each}
        super().__init__(required=required, params=params)

    # -- signing -------------------------------------------------------------------------------

    def for_agent(self, card: AgentCard) -> Extension:
        """Return the extension for calls of an agent: messages are for the audience of its card."""
        declared = self.declared_on(card)
        bound = copy.copy(self)
        bound._audience = str((declared.params or {}).get("audience", "")) if declared else ""
        return bound

    def ask(self, request: SendMessageRequest) -> SendMessageRequest:
        """Sign what a client sends."""
        return replace(request, message=self._signed(request.message, self._audience))

    def send(self, event: Any) -> Any:
        """Sign what an agent sends."""
        if self._keys is None:
            return event
        if isinstance(event, Message):
            return self._signed(event, "")
        if isinstance(event, TaskArtifactUpdateEvent):
            return self._signed_chunk(event)
        if event.status.message is None:
            return event
        said = self._signed(event.status.message, "")
        return replace(event, status=replace(event.status, message=said))

    def _signed(self, message: Message, audience: str) -> Message:
        if self._keys is None:
            return message
        signature = Signature(
            jws="",
            issued_at=int(self._clock()),
            context_id=message.context_id,
            task_id=message.task_id,
            audience=audience,
            metadata=tuple(sorted(name for name in message.metadata or {} if name != URI)),
        )
        return self.put(message, self._with_jws(signature, message_payload(message, signature)))

    def _signed_chunk(self, event: TaskArtifactUpdateEvent) -> TaskArtifactUpdateEvent:
        name = (event.task_id, event.artifact.artifact_id)
        known = self._growing.pop(name, None) if event.append else START
        if known is None:  # another process began it: the signature of before does not hold
            return event
        digest = grown(known, event.artifact.parts)
        if not event.last_chunk:
            self._growing[name] = digest
            if len(self._growing) > MOST_GROWING:
                self._growing.popitem(last=False)
        signature = Signature(
            jws="", issued_at=int(self._clock()), context_id=event.context_id, task_id=event.task_id
        )
        payload = artifact_payload(event.artifact.artifact_id, digest, signature)
        signed = self.put(event.artifact, self._with_jws(signature, payload))
        # The digest is over parts: pieces of a text stay parts.
        others = {name: each for name, each in (event.metadata or {}).items() if name != CONTINUES}
        return replace(event, artifact=signed, metadata=others or None)

    def _with_jws(self, signature: Signature, payload: bytes) -> Signature:
        assert self._keys is not None
        header = {"jku": self._jku} if self._jku else {}
        return replace(signature, jws=self._keys.signers[0].jws(header, payload, detached=True))

    # -- verifying -----------------------------------------------------------------------------

    async def receive(
        self, request: SendMessageRequest, context: CallContext
    ) -> SendMessageRequest:
        """Refuse a message that no trusted key signed, that is old, or that was here before."""
        if self._trusted is None:
            return request
        message = request.message
        try:
            found = await verified(message, self._trusted)
        except SignatureInvalid as error:
            raise InvalidParamsError(f"the message is refused: {error}") from None
        problem = self._problem(message, found.signature)
        if not problem and not await self._is_new(message, found, context):
            problem = "it was here before: sign each sending anew"
        if problem:
            raise InvalidParamsError(f"the message is refused: {problem}")
        return request

    async def _is_new(self, message: Message, verdict: Verdict, context: CallContext) -> bool:
        if context.once is None:
            raise RuntimeError("messages are verified where an agent receives them")
        # What was signed, and not the signature: with ES256 anyone can make a second one of it.
        said = hashlib.sha256(message_payload(message, verdict.signature)).hexdigest()
        until = round((verdict.signature.issued_at + self._window) * 1000)
        return await context.once.take(URI, f"{verdict.kid} {said}", until)

    def _problem(self, message: Message, signature: Signature) -> str:
        problem = ""
        if abs(self._clock() - signature.issued_at) > self._window:
            problem = f"it was signed more than {self._window:g} seconds from now"
        elif self._audience and signature.audience != self._audience:
            problem = f"it is not for {self._audience!r}"
        elif signature.context_id and signature.context_id != message.context_id:
            problem = "it was signed for another context"
        elif signature.task_id != message.task_id:
            problem = "it was signed for another task"
        return problem
