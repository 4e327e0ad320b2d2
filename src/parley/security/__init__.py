"""Security schemes of agents, callers and their rights; safe egress, and signed tokens.

from parley.security import OpenIdConnect

agent = Agent("Bank", security=OpenIdConnect("https://id.example.com", audience="bank"))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from parley.model.distribution import loaded_when_used

if TYPE_CHECKING:
    from parley.model.cards import AuthorizationCodeOAuthFlow as AuthorizationCodeOAuthFlow
    from parley.model.cards import ClientCredentialsOAuthFlow as ClientCredentialsOAuthFlow
    from parley.model.cards import DeviceCodeOAuthFlow as DeviceCodeOAuthFlow
    from parley.security.authorization import Access as Access
    from parley.security.authorization import Policy as Policy
    from parley.security.egress import Egress as Egress
    from parley.security.owner import OwnerPolicy as OwnerPolicy
    from parley.security.owner import claim as claim
    from parley.security.owner import owner_function as owner_function
    from parley.security.schemes.api_key import ApiKey as ApiKey
    from parley.security.schemes.api_key import create_key as create_key
    from parley.security.schemes.http import Basic as Basic
    from parley.security.schemes.http import Bearer as Bearer
    from parley.security.schemes.mutual_tls import MutualTls as MutualTls
    from parley.security.schemes.oauth import Introspection as Introspection
    from parley.security.schemes.oauth import Jwt as Jwt
    from parley.security.schemes.oauth import OAuth2 as OAuth2
    from parley.security.schemes.oauth import OpenIdConnect as OpenIdConnect
    from parley.security.schemes.scheme import Scheme as Scheme
    from parley.security.schemes.scheme import Security as Security
    from parley.security.schemes.scheme import anonymous as anonymous
    from parley.security.signing.keys import SigningKeys as SigningKeys

_HOMES = {
    "parley.model.cards": (
        "AuthorizationCodeOAuthFlow ClientCredentialsOAuthFlow DeviceCodeOAuthFlow"
    ),
    "parley.security.authorization": "Access Policy",
    "parley.security.egress": "Egress",
    "parley.security.owner": "OwnerPolicy claim owner_function",
    "parley.security.schemes.api_key": "ApiKey create_key",
    "parley.security.schemes.http": "Basic Bearer",
    "parley.security.schemes.mutual_tls": "MutualTls",
    "parley.security.schemes.oauth": "Introspection Jwt OAuth2 OpenIdConnect",
    "parley.security.schemes.scheme": "Scheme Security anonymous",
    "parley.security.signing.keys": "SigningKeys",
}

__getattr__, __dir__ = loaded_when_used(__name__, _HOMES)
