"""A receiver of push notifications, as authors write it, for the type checker."""

from typing import assert_type

import parley
from parley import Task
from parley.push import PushNotification, Receiver, receiver, verify_hmac, verify_token


async def handle(notification: PushNotification) -> None:
    assert_type(await notification.task(), Task)
    assert_type(notification.number, int | None)


def handle_in_a_thread(notification: PushNotification) -> None:
    assert_type(notification.task_sync(), Task)


hook = receiver(
    handle,
    verify=[verify_hmac("a-secret-of-thirty-characters!"), verify_token("t")],
    agent=lambda: parley.connect("http://localhost:9999"),
)
assert_type(hook, Receiver)
receiver(handle_in_a_thread, verify=False)
