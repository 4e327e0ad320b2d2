"""Official clients read errors over HTTP+JSON of 0.3, whose form is not specified."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import Processes, case
from .official_caller import Official, Refused, request

pytestmark = pytest.mark.anyio

CLIENTS = ("python-1.3", "js-1.3", "js-0.3", "go-2.4", "python-0.3")


@pytest.fixture(scope="module", params=[case(peer) for peer in CLIENTS], ids=" ".join)
async def official(
    request: pytest.FixtureRequest, house: str, official_clients: Processes
) -> Official:
    """A client that uses 0.3 over HTTP+JSON."""
    [peer] = request.param
    return Official(peer, await official_clients(peer), house, "HTTP+JSON", "0.3")


def asked(official: Official, text: str, configuration: Any = None, **message: Any) -> Any:
    """Return the parameters that send a text, in the form of the client's driver."""
    asked = request(text, configuration, **message)
    if official.peer in ("js-0.3", "python-0.3"):
        said = asked["message"]
        parts = [
            {"kind": "text", **part}
            if "text" in part
            else {"kind": "file", "file": {"bytes": part["raw"], "mimeType": part["mediaType"]}}
            for part in said["parts"]
        ]
        asked["message"] = {**said, "kind": "message", "role": "user", "parts": parts}
        asked["configuration"] = {"blocking": True, **asked["configuration"]}
    return asked


async def test_what_is_refused_is_a_typed_error(official: Official) -> None:
    answer = await official.call("send", asked(official, "two"))
    done = {"id": answer.get("task", answer)["id"]}
    picture = [{"raw": "AA==", "mediaType": "video/mp4"}]
    more = asked(official, "more", taskId=done["id"])
    for do, params, kind, words in (
        ("get", {"id": "nobody"}, "TaskNotFoundError", "no task 'nobody'"),
        ("cancel", {"id": "nobody"}, "TaskNotFoundError", "no task 'nobody'"),
        ("subscribe", {"id": "nobody"}, "TaskNotFoundError", "no task 'nobody'"),
        ("cancel", done, "TaskNotCancelableError", "ended as completed"),
        ("subscribe", done, "UnsupportedOperationError", "has ended"),
        ("stream", more, "UnsupportedOperationError", "has ended"),
        ("send", more, "UnsupportedOperationError", "has ended"),
        (
            "send",
            asked(official, "echo", parts=picture),
            "ContentTypeNotSupportedError",
            "video/mp4",
        ),
        ("send", asked(official, "nothing that I know"), "InvalidParamsError", "no skill"),
    ):
        with pytest.raises(Refused) as caught:
            await official.call(do, params)
        if official.peer == "python-0.3":
            # It reads no error body, and checks the head of a stream before its status.
            words, kind = "HTTP Error 40", "A2AClientHTTPError"
        elif (official.peer, kind) == ("js-0.3", "InvalidParamsError"):
            kind = "Error"  # it has no class for the error, and shows code, text and details
        assert (caught.value.kind, words in str(caught.value)) == (kind, True), (do, caught.value)
