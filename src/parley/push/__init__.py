"""Push notifications: at-least-once delivery of the task log to webhooks, and their receivers.

from parley.push import PushNotification, VerifyHmac, receiver


async def handle(notification: PushNotification) -> None:
print(notification.event)


app = receiver(handle, verify=VerifyHmac("whsec_..."))
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parley.push.receiving.receiver import Receiver, receiver
    from parley.push.receiving.request import (
        DeliveredRequest,
        NotificationRefused,
        PushNotification,
        ReceiverLimits,
        Verified,
    )
    from parley.push.receiving.verification import (
        VerifyAccessToken,
        VerifyAll,
        VerifyAny,
        VerifyApiKey,
        VerifyBasic,
        VerifyBearer,
        VerifyHmac,
        VerifyJwt,
        VerifyToken,
        WebhookVerification,
    )

_RECEIVING = {
    "receiver": ("Receiver", "receiver"),
    "request": (
        "DeliveredRequest", "NotificationRefused", "PushNotification", "ReceiverLimits", "Verified",
    ),
    "verification": (
        "VerifyAccessToken", "VerifyAll", "VerifyAny", "VerifyApiKey", "VerifyBasic",
        "VerifyBearer", "VerifyHmac", "VerifyJwt", "VerifyToken", "WebhookVerification",
    ),
}  # fmt: skip
_HOMES = {
    name: f"parley.push.receiving.{module}"
    for module, names in _RECEIVING.items()
    for name in names
}

__all__ = [
    "DeliveredRequest",
    "NotificationRefused",
    "PushNotification",
    "Receiver",
    "ReceiverLimits",
    "Verified",
    "VerifyAccessToken",
    "VerifyAll",
    "VerifyAny",
    "VerifyApiKey",
    "VerifyBasic",
    "VerifyBearer",
    "VerifyHmac",
    "VerifyJwt",
    "VerifyToken",
    "WebhookVerification",
    "receiver",
]


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used: sending needs none of them."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'parley.push' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
