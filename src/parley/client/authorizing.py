"""Send a task the credential that it asks for (``RemoteAgent.authorize``).

The credential is sent only to the callback address of the task, which must be at the agent's own
origin or at a trusted one, and encrypted unless it is on this machine.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Union

import msgspec

from parley.client.auth.credentials import Credential, Use
from parley.client.auth.grant import Grant
from parley.client.auth.issuers import IssuerHttp, Issuers
from parley.client.bindings.http import redacted
from parley.client.bindings.request_auth import NOTHING, override, refusal_in
from parley.client.errors import (
    AuthenticationRequired,
    ClientError,
    NotEncrypted,
    OriginNotTrusted,
    UnexpectedStatus,
)
from parley.client.files.transfer import AgentFiles
from parley.client.origin import Origin
from parley.extensions.questions import AuthRequest, auth_request
from parley.model.errors import an
from parley.model.parts import Message
from parley.model.tasks import Task
from parley.security.networks import is_loopback

TIMEOUT = 30.0

Given = Union[str, tuple[str, str], Mapping[str, Any], Credential]  # noqa: UP007
"""A token or an API key, a user and a password, a token response, or a credential."""


async def authorize(
    files: AgentFiles, asked: Task | Message, given: Given, trust: Sequence[str]
) -> None:
    """Post a credential to the callback of a task that asks for one."""
    request = auth_request(asked)
    if request is None:
        raise ValueError(
            "this task asks for no credential at a callback: its state is not AUTH_REQUIRED, or it "
            "takes a message (remote.send(..., task=task))"
        )
    if not request.callback:
        raise ValueError(
            "this task accepts no posted credential: a person opens auth_request(task)."
            "authorization_url in a browser and logs in"
        )
    if isinstance(trust, str):
        raise ValueError(f"trust is a list of origins, such as [{trust!r}]")
    try:
        origin = Origin.of(request.callback)
    except ValueError as error:
        raise ClientError(f"the task names a callback that is not {error}") from None
    if origin.is_plaintext:
        raise NotEncrypted(
            f"the task wants the credential at {origin}, which is not encrypted: nothing was sent"
        )
    own = any(each.covers(origin) for each in files.origins)
    trusted = files.auth.credentials.trusts(origin) or any(
        Origin.parse(each).covers(origin) for each in trust
    )
    if not (own or trusted):
        raise OriginNotTrusted(
            f"the task wants the credential at {origin}, which is not the agent's: nothing was "
            f"sent there. To allow it: authorize(..., trust=[{str(origin)!r}])"
        )
    body = msgspec.json.encode(await _content(request, given, files, origin))
    await _post(files, request.callback, origin, body, with_own=own or not trust)


async def _post(
    files: AgentFiles, url: str, origin: Origin, body: bytes, *, with_own: bool
) -> None:
    """Post the body, with the caller's own credentials if the callback's origin may get them."""
    headers, auth = {}, None
    credentials = files.auth.credentials
    if with_own and credentials.allows(origin):
        parameters = credentials.agent_parameters(origin, files.card)
        url, headers, auth = parameters.add_to(url), parameters.headers, files.auth.at(origin)
    may_ask = True
    while True:
        own = await auth.parameters(None) if auth is not None else NOTHING
        sent = {
            **override(headers, own.headers),
            "Content-Type": "application/json",
            "Accept": "application/json",
        }
        reply = await files.http.send("POST", own.add_to(url), sent, body, timeout=TIMEOUT)
        if reply.status in (401, 403) and may_ask and auth is not None:
            may_ask = False
            if await auth.answer(refusal_in(reply.status, reply.headers), None, own):
                continue
        break
    if reply.status in (200, 201, 202, 204):
        return
    said = _words_of(reply.body)
    text = f"{redacted(str(origin))} did not accept the credential ({reply.status}){said}"
    if reply.status in (401, 403):
        challenge = reply.headers.get("www-authenticate", "")
        raise AuthenticationRequired(text, status=reply.status, challenge=challenge)
    raise UnexpectedStatus(text, status=reply.status)


async def _content(
    request: AuthRequest, given: Given, files: AgentFiles, origin: Origin
) -> dict[str, Any]:
    """Return the content to post. Raises ``TypeError``, ``ValueError``."""
    scheme = request.scheme
    if isinstance(given, Mapping):
        return dict(given)
    if isinstance(given, tuple) and len(given) == 2:
        return {"username": given[0], "password": given[1]}
    if isinstance(given, Credential):
        local = is_loopback(origin.host)
        # The user names the issuer, so it may be at any address.
        http = IssuerHttp(
            files.http,
            trusts=lambda each: isinstance(given, Grant) and given.names(each),
            is_local=local,
        )
        try:
            use = Use(
                origin=str(origin), issuers=Issuers(http), scheme=scheme, scopes=request.scopes
            )
            found = await given.attach(use)
        finally:
            await http.aclose()
        values = [*found.headers.values(), *found.query.values()]
        kind, _, rest = found.headers.get("Authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return {"access_token": rest}
        if kind.lower() == "basic":
            user, _, password = base64.b64decode(rest).decode().partition(":")
            return {"username": user, "password": password}
        if len(values) != 1:
            raise ValueError(f"{given!r} cannot be posted")
        return {"api_key": values[0].partition("=")[2] if "Cookie" in found.headers else values[0]}
    if not isinstance(given, str) or not given:
        raise TypeError(
            "a credential is a token or an API key (text), a user and a password (two texts), a "
            f"token response (a dict), or one of parley.client.auth, not {an(type(given).__name__)}"
        )
    return {"api_key" if kind_of(request) == "api_key" else "access_token": given}


def kind_of(request: AuthRequest) -> Literal["token", "basic", "api_key"]:
    """Return the kind of credential in a request: a token, unless its scheme names another kind."""
    scheme = request.scheme
    if scheme is None:
        return "token"
    if scheme.api_key_security_scheme is not None:
        return "api_key"
    http = scheme.http_auth_security_scheme
    return "basic" if http is not None and http.scheme.lower() == "basic" else "token"


def _words_of(body: bytes) -> str:
    """Return the text of an error response, shortened and printable."""
    try:
        found = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError):
        return ""
    said = found.get("error") if isinstance(found, dict) else None
    return f": {said[:300]}" if isinstance(said, str) and said.isprintable() else ""
