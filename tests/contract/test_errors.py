"""Every error of the protocol keeps its type over every binding."""

from __future__ import annotations

from uuid import uuid4

import pytest

from parley import Message, Part, Role
from parley.model.errors import (
    A2AError,
    ContentTypeNotSupportedError,
    InternalError,
    InvalidParamsError,
    OverloadedError,
    PermissionDeniedError,
    TaskNotFoundError,
    UnauthenticatedError,
)
from parley.model.operations import (
    CancelTaskRequest,
    GetTaskRequest,
    SendMessageConfiguration,
    SendMessageRequest,
    SubscribeToTaskRequest,
)
from tests.contract.conftest import past_the_card, reach

pytestmark = pytest.mark.anyio


def saying(*parts, **more):
    given = {"message_id": uuid4().hex, "role": Role.USER, "parts": parts or (Part(text="x"),)}
    return SendMessageRequest(message=Message(**{**given, **more}))


def accepting(*modes, **request):
    configuration = SendMessageConfiguration(accepted_output_modes=modes)
    return SendMessageRequest(configuration=configuration, **request)


async def refused(remote, name, request):
    """Return the error of an operation that skips the client's check of the card."""
    with pytest.raises(A2AError) as caught:
        await past_the_card(remote, name, request)
    return caught.value


@pytest.mark.parametrize(
    ("name", "request_", "error"),
    [
        ("GetTask", GetTaskRequest(id="nobody"), TaskNotFoundError),
        ("CancelTask", CancelTaskRequest(id="nobody"), TaskNotFoundError),
        ("SubscribeToTask", SubscribeToTaskRequest(id="nobody"), TaskNotFoundError),
        ("SendMessage", saying(task_id="nobody"), TaskNotFoundError),
        ("SendStreamingMessage", saying(task_id="nobody"), TaskNotFoundError),
        (
            "SendMessage",
            saying(Part(text="words please"), Part(url="https://x.example", media_type="image/x")),
            ContentTypeNotSupportedError,
        ),
        (
            "SendStreamingMessage",
            saying(Part(text="words please"), Part(data={"a": 1}, media_type="application/json")),
            ContentTypeNotSupportedError,
        ),
        (
            "SendMessage",
            accepting("image/png", message=saying(Part(text="work please")).message),
            ContentTypeNotSupportedError,
        ),
        ("SendMessage", saying(metadata={"skill": "nonsense"}), InvalidParamsError),
        ("SendStreamingMessage", saying(metadata={"skill": "nonsense"}), InvalidParamsError),
    ],
    ids=lambda value: getattr(value, "__name__", None) or str(value)[:12],
)
async def test_what_is_refused_is_refused_alike(remote, name, request_, error):
    caught = await refused(remote, name, request_)
    assert type(caught) is error
    assert caught.message


async def test_what_nobody_foresaw_is_an_internal_error_without_details(remote):
    caught = await refused(remote, "SendMessage", saying(Part(text="break please")))
    assert type(caught) is InternalError
    assert "hunter2" not in str(caught)


@pytest.mark.parametrize(
    ("user", "error"),
    [
        ("nobody", UnauthenticatedError),
        ("mallory", PermissionDeniedError),
        ("crowd", OverloadedError),
    ],
)
async def test_who_is_not_let_in_is_told_so(server, speech, user, error):
    async with reach(server.contract, speech, headers={"x-user": user}) as remote:
        for name, request in (
            ("SendMessage", saying()),
            ("SendStreamingMessage", saying()),
            ("GetTask", GetTaskRequest(id="t")),
            ("SubscribeToTask", SubscribeToTaskRequest(id="t")),
        ):
            caught = await refused(remote, name, request)
            assert type(caught) is error, name
            assert caught.retry_after == (7 if error is OverloadedError else None)
