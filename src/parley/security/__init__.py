"""Security schemes of agents, callers and what they may do; safe egress, and signed tokens.

from parley.security import Bearer

agent = Agent("Bank", security=Bearer(judge))
"""

from parley.security.authorization import Access as Access
from parley.security.authorization import Policy as Policy
from parley.security.owner import OwnerPolicy as OwnerPolicy
from parley.security.owner import claim as claim
from parley.security.owner import owner_function as owner_function
from parley.security.schemes.bearer import Bearer as Bearer
from parley.security.schemes.scheme import Scheme as Scheme
from parley.security.schemes.scheme import Security as Security
from parley.security.schemes.scheme import anonymous as anonymous
