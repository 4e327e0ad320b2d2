"""The issuers whose pages users open for tasks (``turn.require_auth(oauth=...)``)."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from parley.security.egress import Egress

if TYPE_CHECKING:
    from parley.client.auth import AuthorizationCode
    from parley.client.auth.issuers import Issuers
    from parley.client.bindings.http import HttpTransport

MAX_KEPT = 16


class TurnIssuers:
    """The issuers that the turns of one agent use, with their metadata and connections.

    Only what the author named is dialled without the egress guard.
    """

    def __init__(self, egress: Egress | None = None) -> None:
        self.egress = egress or Egress()
        self._http: HttpTransport | None = None
        self._kept: OrderedDict[tuple[str, str], Issuers] = OrderedDict()

    async def of(self, oauth: AuthorizationCode) -> Issuers:
        """Return what finds the issuer of a client."""
        key = (oauth.issuer, oauth.token_url)
        found = self._kept.get(key)
        if found is None:
            from parley.client.auth.issuer_http import IssuerHttp
            from parley.client.auth.issuers import Issuers
            from parley.client.bindings.http import HttpTransport
            from parley.client.origin import Origin
            from parley.security.loopback import is_loopback

            if self._http is None:
                self._http = HttpTransport(trust_env=True, bound_to_turns=False)
            is_local = is_loopback(Origin.of(oauth.issuer).host)
            http = IssuerHttp(self._http, trusts=oauth.names, is_local=is_local, egress=self.egress)
            found = self._kept[key] = Issuers(http)
            if len(self._kept) > MAX_KEPT:
                _, oldest = self._kept.popitem(last=False)
                await oldest.http.aclose()
        self._kept.move_to_end(key)
        return found

    async def aclose(self) -> None:
        """Close the connections. The next use opens new ones."""
        kept, self._kept = self._kept, OrderedDict()
        for issuers in kept.values():
            await issuers.http.aclose()
        http, self._http = self._http, None
        if http is not None:
            await http.close()
