"""Sells a book, and waits for the payment: for days if need be, and over restarts.

    uvicorn --app-dir examples payments:app --port 8700     a stand-in for a payment provider
    parley serve examples/bookshop.py
    parley send --async "The Odyssey"

The answer is a task that is WORKING: the book is reserved. Its status names the page where the
customer pays, which here is a command:

    curl -X POST http://127.0.0.1:8700/payments/1/pay
    parley task get ...

The provider then posts to the callback address that the agent gave it with the order. The address
is signed and completes this one event, so the provider needs no other credentials.
"""

import os
from datetime import timedelta

import aiohttp

from parley import Agent, Turn

PROVIDER = os.environ.get("PAYMENTS_URL", "http://127.0.0.1:8700")

agent = Agent("Bookshop", description="Sells books, and sends them when they are paid")


@agent.skill(tags=["shopping"], examples=["The Odyssey"], replies="task")
async def order(turn: Turn) -> str:
    """Sells the book that the message names."""
    paid = f"paid:{turn.task_id}"  # all orders share the agent's events, so the key has the task
    callback = await turn.callback(paid, expires=timedelta(days=7))
    page = await turn.step("request payment", request_payment, turn.text, callback)
    try:
        payment = await turn.wait_event(
            paid, timeout=timedelta(days=7), message=f"Please pay at {page}"
        )
    except TimeoutError:
        turn.fail("Nobody paid within a week; the book is for sale again.")
    return f"{turn.text} is on its way. Paid: {payment['amount']} {payment['currency']}."


async def request_payment(book: str, callback: str) -> str:
    """Ask the provider for a payment, and return the page where the customer pays."""
    wanted = {"amount": "12.50", "currency": "EUR", "for": book, "callback": callback}
    async with (
        aiohttp.ClientSession(raise_for_status=True) as session,
        session.post(f"{PROVIDER}/payments", json=wanted) as answer,
    ):
        page: str = (await answer.json())["page"]
        return page
