"""Security schemes of agents, callers and what they may do; safe egress, and signed tokens.

from parley.security import OpenIdConnect

agent = Agent("Bank", security=OpenIdConnect("https://id.example.com", audience="bank"))
"""

from parley.model.schemes import AuthorizationCodeOAuthFlow as AuthorizationCodeOAuthFlow
from parley.model.schemes import ClientCredentialsOAuthFlow as ClientCredentialsOAuthFlow
from parley.model.schemes import DeviceCodeOAuthFlow as DeviceCodeOAuthFlow
from parley.security.authorization import Access as Access
from parley.security.authorization import Policy as Policy
from parley.security.schemes.bearer import Bearer as Bearer
from parley.security.schemes.introspection import Introspection as Introspection
from parley.security.schemes.jwt import Jwt as Jwt
from parley.security.schemes.oauth2 import OAuth2 as OAuth2
from parley.security.schemes.open_id_connect import OpenIdConnect as OpenIdConnect
from parley.security.schemes.scheme import Scheme as Scheme
from parley.security.schemes.scheme import Security as Security
from parley.security.schemes.scheme import anonymous as anonymous
