"""Verifies the access token of a delivery (``OAuth2``), by a security scheme of this package."""

from __future__ import annotations

import inspect

from parley.model.errors import A2AError, OverloadedError
from parley.push.receiving.request import DeliveredRequest, NotificationRefused, Verified
from parley.security.evidence import Evidence
from parley.security.resources import SchemeResources
from parley.security.schemes.scheme import CredentialsRefused, Scheme


class VerifyAccessToken:
    """``OAuth2``: the access token that the agent's server got for this webhook.

    ``scheme`` judges it: ``Jwt``, ``OAuth2``, ``OpenIdConnect`` or ``Bearer`` of
    ``parley.security``. ``subjects`` are the accounts that may send, as their tokens name them;
    without it, every token that the scheme accepts may.
    """

    def __init__(self, scheme: Scheme, *, subjects: tuple[str, ...] | list[str] = ()) -> None:
        if not isinstance(scheme, Scheme) or scheme.credential != "bearer":
            raise TypeError(
                "VerifyAccessToken takes a scheme for bearer tokens of parley.security, such as "
                f"Jwt(...) or OAuth2(...), not {scheme!r}"
            )
        if isinstance(subjects, str):
            raise TypeError(f"subjects= is a list, such as [{subjects!r}]")
        self._scheme = scheme
        self._subjects = frozenset(subjects)
        self._is_started = False

    def __repr__(self) -> str:
        return f"VerifyAccessToken({self._scheme!r})"

    async def verify(self, request: DeliveredRequest, max_age: float) -> Verified:
        """Verify the token. It proves no body, and the time of its own issue only."""
        value = request.header("authorization")
        if not self._is_started:
            self._is_started = True
            await self._scheme.start(SchemeResources())
        evidence = Evidence(
            {"headers": [(b"authorization", value.encode("latin-1"))], "query_string": b""}
        )
        try:
            if not self._scheme.is_presented(evidence):
                raise NotificationRefused(401, "there is no access token")
            found = self._scheme.verify(evidence)
            proof = await found if inspect.isawaitable(found) else found
        except CredentialsRefused as refused:
            raise NotificationRefused(401, refused.reason) from None
        except OverloadedError as overloaded:
            raise NotificationRefused(503, str(overloaded), retry_after=5) from None
        except A2AError as error:
            raise NotificationRefused(401, str(error)) from None
        if self._subjects and proof.caller.id not in self._subjects:
            raise NotificationRefused(403, "an access token of another account")
        return Verified("OAuth2")

    async def close(self) -> None:
        """End what is under way."""
        if self._is_started:
            self._is_started = False
            await self._scheme.close()
