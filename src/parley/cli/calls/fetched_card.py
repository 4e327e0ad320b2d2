"""Fetches the card that ``--agent-card`` names: from a file, or from an address."""

from __future__ import annotations

from parley.cli.calls.agent_call import RETRY, AgentCall
from parley.cli.output.failures import UsageFailure
from parley.cli.output.redaction import without_user
from parley.client.auth.authorizer import Authorizer
from parley.client.auth.credentials import Credentials
from parley.client.bindings.http import HttpTransport
from parley.client.card.resolver import CardResolver, ResolvedCard
from parley.client.card.trust import CardTrust
from parley.client.card.verification import CardVerifier


async def fetch_card(
    call: AgentCall, trust: CardTrust | None
) -> tuple[ResolvedCard, Credentials, HttpTransport]:
    """Return the card of ``--agent-card``, verified as ``trust`` says, and what fetched it."""
    settings = call.settings
    try:
        reference, credentials = Credentials.from_reference(
            settings.agent_card,
            headers=call.headers,
            bearer=settings.bearer,
            api_key=settings.api_key,
            trust_origins=settings.trust_origin,
            insecure=settings.insecure,
        )
    except ValueError as error:
        raise UsageFailure(str(error)) from None
    async with call.http() as http:
        auth = Authorizer(
            credentials,
            None if call.uses_logins else (),
            http=http,
            address=without_user(settings.agent_card),
        )
        http.certificate_for = auth.may_see_certificate
        resolver = CardResolver(
            http, credentials=credentials, auth=auth, timeout=call.response_timeout, retry=RETRY
        )
        verifier = CardVerifier(trust, http)
        try:
            resolved = await verifier.verify(await resolver.resolve(reference))
        finally:
            await verifier.aclose()
            await auth.aclose()
    return resolved, credentials, http
