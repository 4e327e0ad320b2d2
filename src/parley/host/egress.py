"""The egress policies of a server: from its settings and the environment, one for each use."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from parley.security.egress import Egress
from parley.security.networks import is_loopback
from parley.server.app import Settings

ALLOW_VARIABLE = "PARLEY_EGRESS_ALLOW"
DENY_VARIABLE = "PARLEY_EGRESS_DENY"
ONLY_VARIABLE = "PARLEY_EGRESS_ONLY_ALLOWED"

Allowed = bool | Iterable[str]

_YES = frozenset({"1", "true", "yes", "on"})
_NO = frozenset({"", "0", "false", "no", "off"})


def read_egress(
    allow: Iterable[str] = (),
    deny: Iterable[str] = (),
    *,
    only_allowed: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> Egress:
    """Return the policy of options; those that are not given come from the environment.

    Raises ``ValueError``, which names the variable that is wrong.
    """
    only = environ.get(ONLY_VARIABLE, "").strip().lower()
    if only not in _YES | _NO:
        raise ValueError(f"{ONLY_VARIABLE} is 1 or 0, not {only[:100]!r}")
    public = not (only_allowed or only in _YES)
    given = Egress(public=public)
    for variable, places, field in (
        (ALLOW_VARIABLE, allow, "allow"),
        (DENY_VARIABLE, deny, "deny"),
    ):
        listed = list(places)
        if not listed:
            listed = environ.get(variable, "").replace(",", " ").split()
        try:
            given = given.adding(listed) if field == "allow" else given.denying(listed)
        except ValueError as error:
            raise ValueError(f"egress, {field} ({variable}): {error}") from error
    return given


def egress_options(
    egress: Egress | None, *, webhooks: Allowed, files: Allowed, agents: Allowed | None
) -> dict[str, Any]:
    """Return the policies of a host. Raises ``TypeError`` and ``ValueError``."""
    if egress is None:
        egress = read_egress()
    elif not isinstance(egress, Egress):
        raise TypeError(
            f"egress is a policy, as Egress.of(allow=[...], deny=[...]), not {egress!r:.200}"
        )
    return {
        "egress": egress,
        "webhook_egress": egress.adding(webhooks, option="allow_private_webhooks"),
        "file_egress": egress.adding(files, option="allow_private_files"),
        "agent_egress": egress.adding(agents or (), option="allow_private_agents"),
    }


def is_of_this_machine(settings: Settings, url: str | None) -> bool:
    """Return whether a server that listens on this machine alone has its callers here too.

    Its agents may call others of this machine: whoever calls them reaches those as well. A server
    with a public address, or with a proxy in front, has callers from elsewhere.
    """
    hosts = [each.rpartition(":")[0] or each for each in settings.allowed_hosts]
    if url:
        hosts.append(urlsplit(url).hostname or "")
    return not settings.trust_proxy and all(map(is_loopback, hosts))
