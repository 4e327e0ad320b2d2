"""A stand-in for a payment provider, as an agent sees it. It keeps everything in memory.

    uvicorn --app-dir examples payments:app --port 8700

examples/bookshop.py uses it. A request for a payment returns the page where the customer pays:

    curl -X POST http://127.0.0.1:8700/payments/1/pay

Then it posts the payment to the callback address, and tries again while the server is down, as
providers do. A callback may be posted twice; the event is completed once.
"""

import asyncio
from typing import Any

import aiohttp
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

TRIES = 10
FIRST_PAUSE = 0.2

payments: dict[str, dict[str, Any]] = {}


async def create(request: Request) -> JSONResponse:
    """Store a request for a payment, and return the page for the customer."""
    wanted = await request.json()
    id = str(len(payments) + 1)
    payments[id] = {**wanted, "id": id}
    return JSONResponse({"id": id, "page": str(request.url_for("pay", id=id))}, 201)


async def pay(request: Request) -> JSONResponse:
    """Pay, and post to the callback address."""
    payment = payments[request.path_params["id"]]
    return JSONResponse({"paid": True}, background=BackgroundTask(call_back, payment))


async def call_back(payment: dict[str, Any]) -> None:
    """Post a payment to its callback address, until the answer is a success or a refusal."""
    said = {key: payment[key] for key in ("id", "amount", "currency")}
    async with aiohttp.ClientSession() as session:
        for attempt in range(TRIES):
            try:
                async with session.post(payment["callback"], json=said) as answer:
                    if answer.status < 500:
                        return
            except aiohttp.ClientError:
                pass  # the server is down: try again
            await asyncio.sleep(FIRST_PAUSE * 2**attempt)


app = Starlette(
    routes=[
        Route("/payments", create, methods=["POST"]),
        Route("/payments/{id}/pay", pay, methods=["POST"], name="pay"),
    ]
)
