"""Security schemes of agents, callers and what they may do; safe egress, and signed tokens.

from parley.security import Bearer

agent = Agent("Bank", security=Bearer(judge))
"""

from parley.security.api_keys import create_key as create_key
from parley.security.authorization import Access as Access
from parley.security.authorization import Policy as Policy
from parley.security.schemes.api_key import ApiKey as ApiKey
from parley.security.schemes.basic import Basic as Basic
from parley.security.schemes.bearer import Bearer as Bearer
from parley.security.schemes.scheme import Scheme as Scheme
from parley.security.schemes.scheme import Security as Security
from parley.security.schemes.scheme import anonymous as anonymous
