"""The ids in a request, looked at before anything is done with them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from parley.model.errors import FieldViolation, InvalidParamsError, UnauthenticatedError
from parley.model.ids import RIGHT_ID, RIGHT_NAME, may_be_id, may_be_name
from parley.model.requests import SendMessageRequest
from parley.model.service import Caller

_NAMES = (
    ("id", "id"),
    ("task_id", "taskId"),
    ("context_id", "contextId"),
    ("tenant", "tenant"),
)
_OF_MESSAGE = (
    ("message_id", "message.messageId"),
    ("context_id", "message.contextId"),
    ("task_id", "message.taskId"),
)


def check_ids(request: Any) -> None:
    """Refuse a request with ids that no store could keep. Raises ``InvalidParamsError``.

    Requests of extensions are looked at too, as far as their fields have the same names.
    """
    if type(request) is SendMessageRequest:
        message = request.message
        ids = request.tenant + message.message_id + message.context_id + message.task_id
        if not message.reference_task_ids and may_be_id(ids):
            return  # if all of them could be one, each could; most are
    wrong = tuple([FieldViolation(field, RIGHT_ID) for field in _wrong_in(request)])
    if wrong:
        said = ", ".join([violation.field for violation in wrong])
        raise InvalidParamsError(f"{said}: an id has {RIGHT_ID}", violations=wrong)


def check_caller(caller: Caller) -> None:
    """Refuse a caller who could not be told from others. Raises ``UnauthenticatedError``."""
    if not may_be_name(caller.id):
        raise UnauthenticatedError(f"the id under which the caller is known has {RIGHT_NAME}")
    if not caller.issuer:
        return
    if not may_be_name(caller.issuer):
        raise UnauthenticatedError(f"the issuer of the caller's id has {RIGHT_NAME}")
    if not caller.id:
        raise UnauthenticatedError("the caller has an issuer and no id: an issuer vouches for one")


def _wrong_in(request: Any) -> Iterator[str]:
    for name, field in _NAMES:
        value = getattr(request, name, "")
        if value and isinstance(value, str) and not may_be_id(value):
            yield field
    if not isinstance(request, SendMessageRequest):
        return
    message = request.message
    for name, field in _OF_MESSAGE:
        if not may_be_id(getattr(message, name)):
            yield field
    for n, task_id in enumerate(message.reference_task_ids):
        if not may_be_id(task_id):
            yield f"message.referenceTaskIds[{n}]"
            break  # there may be a million of them
