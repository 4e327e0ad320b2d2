"""Admit each message once (``urn:parley:idempotent-send:v1``): receipts, digests, repeats."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from parley.engine.replies import RemoteReplies, ReplyHandle
from parley.engine.service.admission import Admission
from parley.engine.service.checks import check_request, invalid
from parley.model.errors import OverloadedError
from parley.model.extensions import IDEMPOTENT_SEND
from parley.model.operations import SendMessageConfiguration, SendMessageRequest
from parley.model.parts import Message
from parley.model.service import CallContext
from parley.model.struct import decode, encode
from parley.store.events import Scope
from parley.store.protocols.errors import DuplicateReceipt
from parley.store.protocols.tables import Receipt
from parley.store.task_store import TaskStore


class Admitted(msgspec.Struct, frozen=True):
    """A message that was admitted; ``handle`` resolves to its reply.

    ``is_new`` is false if the log may already have events of the message's task.
    """

    handle: ReplyHandle
    is_new: bool = True


class Repeated(msgspec.Struct, frozen=True):
    """A message that was admitted before. It got a direct ``reply``, or a task.

    ``began`` is true if the message began the task; ``handle`` waits for the turn that took it.
    """

    reply: Message | None = None
    task_id: str = ""
    began: bool = False
    handle: ReplyHandle | None = None


class _Sent(NamedTuple):
    """A message with what its receipt is kept under: its id, of a sender if there are several."""

    message_id: str
    receipt_id: str
    digest: bytes

    @classmethod
    def of(cls, request: SendMessageRequest, sender: str) -> _Sent:
        message_id = receipt_id = request.message.message_id
        if sender:
            receipt_id = hashlib.sha256(f"{sender}\0{message_id}".encode()).hexdigest()
        return cls(message_id, receipt_id, _digest(request))


class _PendingSend(msgspec.Struct):
    """A message whose caller may repeat it before it has a reply."""

    digest: bytes
    admitted: asyncio.Event
    handle: ReplyHandle | None = None


Admit = Callable[[Sequence[Receipt]], Awaitable[ReplyHandle]]
"""Admits one message, with its receipts."""


class IdempotentAdmission:
    """Admits the messages to one agent; with the extension, each message id once.

    Repeats may be concurrent, and may reach other replicas. Without the extension, a repeated id
    is a new message.
    """

    def __init__(self, admission: Admission, store: TaskStore, replies: RemoteReplies) -> None:
        self._admission = admission
        self._store = store
        self._replies = replies
        self._pending: dict[tuple[Scope, str], _PendingSend] = {}

    async def admit(
        self,
        request: SendMessageRequest,
        context: CallContext,
        scope: Scope,
        *,
        logged: bool = False,
        with_task: bool = False,
    ) -> Admitted | Repeated:
        """Admit a message, or return what became of it before.

        ``logged``: the task is in the log before the function runs. ``with_task``: the handle has
        the whole of an existing task, as it was before the message.
        Raises ``A2AError`` for a message that is refused, and ``StoreError``.
        """
        check_request(request)
        if IDEMPOTENT_SEND not in context.extensions:
            handle = await self._admission.begin_or_join(
                request, context, scope, (), logged, with_task
            )
            return Admitted(handle)
        # With other replicas, the receipt is durable before the function runs.
        logged = logged or self._store.is_shared
        admit = partial(
            self._admission.begin_or_join,
            request,
            context,
            scope,
            logged=logged,
            with_task=with_task,
        )
        authorize = partial(self._admission.authorize_repeat, request, context)
        return await self._admit_once(scope, _Sent.of(request, context.sender), admit, authorize)

    def begin_at_once(
        self, request: SendMessageRequest, context: CallContext, scope: Scope
    ) -> ReplyHandle | None:
        """Begin the task of a message, where nothing has to be waited for; else return ``None``.

        Raises ``A2AError`` for a message that is refused.
        """
        check_request(request)
        return self._admission.begin_at_once(request, context, scope)

    async def _admit_once(
        self, scope: Scope, sent: _Sent, admit: Admit, authorize: Callable[[str], Awaitable[None]]
    ) -> Admitted | Repeated:
        key, digest = (scope, sent.receipt_id), sent.digest
        while (pending := self._pending.get(key)) is not None:
            _check_digest(pending.digest, digest)
            await pending.admitted.wait()
            if pending.handle is not None:
                first = pending.handle
                await authorize(first.task_id)
                return Admitted(first, is_new=False)
        pending = self._pending[key] = _PendingSend(digest, asyncio.Event())
        try:
            repeated = await self._repeated(scope, sent)
            if repeated is not None:
                await authorize(repeated.task_id)
                return repeated
            handle = await self._admit_with_receipt(sent, admit)
            if handle is None:
                repeated = await self._repeated(scope, sent)
                if repeated is not None:
                    return repeated
                raise OverloadedError("the message is being taken in by another", retry_after=1)
            if not handle.is_settled:
                pending.handle = handle
                handle.on_settled = lambda: self._pending.pop(key, None)
            return Admitted(handle, is_new=not handle.is_logged)
        finally:
            if pending.handle is None:
                self._pending.pop(key, None)
            pending.admitted.set()

    async def _admit_with_receipt(self, sent: _Sent, admit: Admit) -> ReplyHandle | None:
        """Admit a message; return ``None`` if another replica was faster."""
        try:
            receipt = Receipt(message_id=sent.receipt_id, digest=sent.digest)
            handle = await admit((receipt,))
        except DuplicateReceipt:
            return None
        if self._store.is_shared:
            await handle.logged()
        return None if handle.is_repeat else handle

    async def _repeated(self, scope: Scope, sent: _Sent) -> Repeated | None:
        """Return what became of a message that was admitted before."""
        receipt = await self._store.receipt(scope, sent.receipt_id)
        if receipt is None:
            return None
        _check_digest(receipt.digest, sent.digest)
        if receipt.reply:
            return Repeated(reply=decode(receipt.reply, Message))
        began = receipt.turn == 1
        handle = await self._replies.handle_for(receipt.task_id, "" if began else sent.message_id)
        return Repeated(task_id=receipt.task_id, began=began, handle=handle)


def _digest(request: SendMessageRequest) -> bytes:
    """Return a digest of the request, the same over every binding."""
    if request.configuration == SendMessageConfiguration():
        request = msgspec.structs.replace(request, configuration=None)
    return hashlib.sha256(encode(request)).digest()


def _check_digest(before: bytes, now: bytes) -> None:
    if before != now:
        raise invalid(
            "message.messageId",
            "this id was used for another message; a repeated message is the same in all "
            "fields, a new one has an id of its own",
        )
