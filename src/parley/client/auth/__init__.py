"""The credentials of a client: what to give ``parley.connect(url, auth=...)``.

from parley.client.auth import ClientCredentials

async with parley.connect(url, auth=ClientCredentials("my-app", secret)) as bank: ...

The server's schemes of the same names are in ``parley.security``.
"""

from parley.client.auth.credential import ApiKey as ApiKey
from parley.client.auth.credential import Basic as Basic
from parley.client.auth.credential import Bearer as Bearer
from parley.client.auth.credential import ClientCertificate as ClientCertificate
from parley.client.auth.credential import Credential as Credential
from parley.client.auth.errors import TokenRefused as TokenRefused
from parley.client.auth.grant import ClientCredentials as ClientCredentials
from parley.client.auth.grant import TokenExchange as TokenExchange
from parley.client.auth.login import AuthorizationCode as AuthorizationCode
from parley.client.auth.login import DeviceCode as DeviceCode
from parley.client.auth.login import DevicePrompt as DevicePrompt
