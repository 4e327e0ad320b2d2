"""The secrets of push configurations in the store: encrypted, if the operator gives a key."""

from __future__ import annotations

from msgspec.structs import replace

from parley.model.operations import TaskPushNotificationConfig
from parley.push.proofs.proof import ProofFailed
from parley.security.sealing import SealBroken, Sealer

MARK = "\u00a7"
"""The beginning of an encrypted secret. No secret of a caller has it: those are ASCII."""

_TOKEN, _CREDENTIALS = "token of a webhook", "credentials of a webhook"


class WebhookSecrets:
    """Encrypts the ``token`` and the credentials of configurations with the key of the operator.

    Each is encrypted for its URL, so that nobody who can write to the database has it sent to
    another. Equal configurations have equal forms: one that is sent again changes nothing.
    Without a key secrets are kept as they are.
    """

    def __init__(self, key: bytes | None) -> None:
        self._sealer = None if key is None else Sealer(key)

    def sealed(self, config: TaskPushNotificationConfig) -> TaskPushNotificationConfig:
        """Return a configuration as it is stored."""
        if self._sealer is None:
            return config
        authentication = config.authentication
        if config.token:
            config = replace(config, token=self._seal(_TOKEN, config.token, config.url))
        if authentication is not None and authentication.credentials:
            credentials = self._seal(_CREDENTIALS, authentication.credentials, config.url)
            authentication = replace(authentication, credentials=credentials)
            config = replace(config, authentication=authentication)
        return config

    def opened(self, config: TaskPushNotificationConfig) -> TaskPushNotificationConfig:
        """Return a stored configuration as its creator gave it. Raises ``ProofFailed``."""
        authentication = config.authentication
        if config.token.startswith(MARK):
            config = replace(config, token=self._open(_TOKEN, config.token, config.url))
        if authentication is not None and authentication.credentials.startswith(MARK):
            credentials = self._open(_CREDENTIALS, authentication.credentials, config.url)
            authentication = replace(authentication, credentials=credentials)
            config = replace(config, authentication=authentication)
        return config

    def _seal(self, purpose: str, text: str, url: str) -> str:
        assert self._sealer is not None
        return MARK + self._sealer.seal_equally(purpose, text.encode(), url)

    def _open(self, purpose: str, text: str, url: str) -> str:
        try:
            if self._sealer is None:
                raise SealBroken
            return self._sealer.open(purpose, text.removeprefix(MARK), url).decode()
        except SealBroken:
            raise ProofFailed(
                "its secrets in the store cannot be read with this server's secret key; create "
                "the configuration again",
                is_refusal=True,
            ) from None
