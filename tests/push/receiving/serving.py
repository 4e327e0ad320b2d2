"""A receiver in its own process: ``python -m tests.push.receiving.serving``.

Its handler writes the id of each notification to a file, waits briefly, and then records the end.
"""

from __future__ import annotations

import os
import sys

import uvicorn

from parley.push import PushNotification, ReceiverLimits, receiver, verify_hmac
from tests.kit.waiting import let_time_pass
from tests.push.receiving.delivering import SECRET


def main(port: str, seen: str, acknowledge: str, file: str, seconds: str) -> None:
    output = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    async def handle(notification: PushNotification) -> None:
        os.write(output, f"begin {notification.id}\n".encode())
        await let_time_pass(float(seconds))
        os.write(output, f"done {notification.id}\n".encode())

    app = receiver(
        handle,
        verify=verify_hmac(SECRET),
        seen=seen,
        acknowledge=acknowledge,  # type: ignore[arg-type]
        limits=ReceiverLimits(lease=1),
    )
    uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="warning", lifespan="on")


if __name__ == "__main__":
    main(*sys.argv[1:])
