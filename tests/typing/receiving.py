"""A receiver of push notifications, as authors write it, for the type checker."""

from typing import assert_type

import parley
from parley import Task
from parley.push import PushNotification, Receiver, VerifyHmac, VerifyToken, receiver


async def handle(notification: PushNotification) -> None:
    assert_type(await notification.task(), Task)
    assert_type(notification.number, int | None)


def handle_in_a_thread(notification: PushNotification) -> None:
    assert_type(notification.task_sync(), Task)


hook = receiver(
    handle,
    verify=[VerifyHmac("a-secret-of-thirty-characters!"), VerifyToken("t")],
    agent=lambda: parley.connect("http://localhost:9999"),
)
assert_type(hook, Receiver)
receiver(handle_in_a_thread, verify=False)
