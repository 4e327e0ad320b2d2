"""The credentials of a client, for ``parley.connect(url, auth=...)``.

from parley.client.auth import ClientCredentials

async with parley.connect(url, auth=ClientCredentials("my-app", secret)) as bank: ...

The server's schemes of the same names are in ``parley.security``.
"""

from parley.client.auth.credentials import ApiKeyCredential as ApiKey
from parley.client.auth.credentials import BasicCredential as Basic
from parley.client.auth.credentials import BearerCredential as Bearer
from parley.client.auth.credentials import ClientCertificate, Credential
from parley.client.auth.grant import ClientCredentials, TokenExchange
from parley.client.auth.issuers import TokenRefused
from parley.client.auth.login import AuthorizationCode, DeviceCode, DevicePrompt

__all__ = [
    "ApiKey",
    "AuthorizationCode",
    "Basic",
    "Bearer",
    "ClientCertificate",
    "ClientCredentials",
    "Credential",
    "DeviceCode",
    "DevicePrompt",
    "TokenExchange",
    "TokenRefused",
]
