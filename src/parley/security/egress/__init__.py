"""Egress policy (an SSRF guard): where requests that the data of others cause may go.

A URL that somebody else names may lead into the server's own network: to a database, a cloud's
metadata, the server itself. So the address is checked when it is dialled, after names were
resolved, which defeats DNS rebinding. A literal address or a local name is rejected before that.
"""

from parley.security.egress.addresses import ForbiddenAddress as ForbiddenAddress
from parley.security.egress.addresses import address_kind as address_kind
from parley.security.egress.addresses import find_cause as find_cause
from parley.security.egress.addresses import find_forbidden as find_forbidden
from parley.security.egress.dialing import MAX_LOOKUPS as MAX_LOOKUPS
from parley.security.egress.dialing import NameLookup as NameLookup
from parley.security.egress.dialing import lookup_caller as lookup_caller
from parley.security.egress.hosts import MAX_NAME_LENGTH as MAX_NAME_LENGTH
from parley.security.egress.hosts import normalize_host as normalize_host
from parley.security.egress.hosts import origin_of as origin_of
from parley.security.egress.places import Place as Place
from parley.security.egress.policy import Egress as Egress
from parley.security.egress.policy import turn_egress as turn_egress
