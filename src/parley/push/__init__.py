"""Push notifications: at-least-once delivery of the task log to webhooks, and their receivers."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parley.push.receiving import Receiver, receiver
    from parley.push.verification import (
        DeliveredRequest,
        NotificationRefused,
        PushNotification,
        ReceiverLimits,
        Verified,
        WebhookVerification,
        any_of,
        verify,
        verify_access_token,
        verify_api_key,
        verify_basic,
        verify_bearer,
        verify_hmac,
        verify_jwt,
        verify_token,
    )

_HOMES = {"Receiver": "receiving", "receiver": "receiving"}

__all__ = [
    "DeliveredRequest",
    "NotificationRefused",
    "PushNotification",
    "Receiver",
    "ReceiverLimits",
    "Verified",
    "WebhookVerification",
    "any_of",
    "receiver",
    "verify",
    "verify_access_token",
    "verify_api_key",
    "verify_basic",
    "verify_bearer",
    "verify_hmac",
    "verify_jwt",
    "verify_token",
]


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used: sending needs none of them."""
    if name not in __all__:
        raise AttributeError(f"module 'parley.push' has no attribute {name!r}")
    home = importlib.import_module(f"parley.push.{_HOMES.get(name, 'verification')}")
    value = getattr(home, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
