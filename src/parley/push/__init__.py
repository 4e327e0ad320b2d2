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
    from parley.push.receiving.access_token import VerifyAccessToken
    from parley.push.receiving.jwt import VerifyJwt
    from parley.push.receiving.limits import ReceiverLimits
    from parley.push.receiving.making import receiver
    from parley.push.receiving.notification import PushNotification
    from parley.push.receiving.receiver import Receiver
    from parley.push.receiving.request import DeliveredRequest, NotificationRefused, Verified
    from parley.push.receiving.verification import (
        VerifyAll,
        VerifyAny,
        VerifyApiKey,
        VerifyBasic,
        VerifyBearer,
        VerifyHmac,
        VerifyToken,
        WebhookVerification,
    )

_RECEIVING = {
    "access_token": ("VerifyAccessToken",),
    "jwt": ("VerifyJwt",),
    "limits": ("ReceiverLimits",),
    "making": ("receiver",),
    "notification": ("PushNotification",),
    "receiver": ("Receiver",),
    "request": ("DeliveredRequest", "NotificationRefused", "Verified"),
    "verification": (
        "VerifyAll", "VerifyAny", "VerifyApiKey", "VerifyBasic", "VerifyBearer", "VerifyHmac",
        "VerifyToken", "WebhookVerification",
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
