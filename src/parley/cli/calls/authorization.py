"""``parley task authorize``: says what a task needs, and reads it without showing it."""

from __future__ import annotations

import asyncio
import getpass
import sys
from typing import TYPE_CHECKING, Any

from parley.cli.output.failures import UsageFailure
from parley.client.authorizing import kind_of
from parley.extensions.questions import AuthRequest

if TYPE_CHECKING:
    from parley.cli.calls.agent_call import AgentCall

_NAMES = {"token": "the token", "api_key": "the API key", "basic": "USER:PASSWORD"}


def describe(call: AgentCall, request: AuthRequest) -> None:
    """Say on standard error what is needed, until when, and where it goes."""
    output = call.output
    scopes = f", with the scopes {' '.join(request.scopes)}" if request.scopes else ""
    until = f", until {request.expires_at}" if request.expires_at is not None else ""
    if request.authorization_url:
        output.warn(f"the task goes on when somebody logs in{until}: {request.authorization_url}")
    else:
        output.note(f"the task needs {_NAMES[kind_of(request)]}{scopes}{until}")
        if request.text:
            output.note(request.text)


async def credential_for(request: AuthRequest) -> Any:
    """Return what the user types, or pipes. Raises ``UsageFailure`` for nothing."""
    kind = kind_of(request)
    if sys.stdin.isatty():
        typed = await asyncio.to_thread(getpass.getpass, f"{_NAMES[kind].capitalize()}: ")
    else:
        typed = await asyncio.to_thread(sys.stdin.read)
    typed = typed.strip("\r\n")
    user, colon, password = typed.partition(":")
    if not typed or (kind == "basic" and not colon):
        raise UsageFailure(f"{_NAMES[kind]} is read from standard input, and there is none")
    return (user, password) if kind == "basic" else typed
