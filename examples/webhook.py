"""A program that is told of tasks: it receives push notifications, each once, in order, verified.

parley serve examples/streaming_report.py --allow-private-webhooks
python examples/webhook.py
parley send --async "Tides"
parley task push-config create TASK_ID http://127.0.0.1:8000/hook --id example
    --auth-scheme HMAC-SHA256 --auth-credentials a-secret-for-this-example-only

When a task has ended, it is fetched from the agent.
"""

import uvicorn
from starlette.applications import Starlette

import parley
from parley.push import PushNotification, receiver, verify_hmac

SECRET = "a-secret-for-this-example-only"
AGENT = "http://127.0.0.1:9999"


async def handle(notification: PushNotification) -> None:
    print(f"{notification.task_id}: event {notification.number}")
    if notification.is_final:
        task = await notification.task()
        print(f"{task.id} ended as {task.state.value}: {task.text}")


hook = receiver(
    handle,
    verify=verify_hmac(SECRET),
    agent=lambda: parley.connect(AGENT),
    seen="sqlite:///webhook.db",  # what was handled, so that a restart repeats nothing
    acknowledge="after",
)
app = Starlette(routes=[hook.route("/hook")], lifespan=hook.lifespan)

if __name__ == "__main__":
    uvicorn.run(app, port=8000)
