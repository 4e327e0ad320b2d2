"""Push notifications: at-least-once delivery of the task log to webhooks, and their receivers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parley.model.distribution import loaded_when_used

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

_HOMES = {
    "parley.push.receiving": "Receiver receiver",
    "parley.push.verification": (
        "DeliveredRequest NotificationRefused PushNotification ReceiverLimits Verified "
        "WebhookVerification any_of verify verify_access_token verify_api_key verify_basic "
        "verify_bearer verify_hmac verify_jwt verify_token"
    ),
}

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

__getattr__, __dir__ = loaded_when_used(__name__, _HOMES)
