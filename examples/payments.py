"""A stand-in for a payment provider, as far as an agent sees one. It keeps everything in memory.

    uvicorn --app-dir examples payments:app --port 8700

examples/bookshop.py uses it. Who asks for a payment gets a page where a customer pays:

    curl -X POST http://127.0.0.1:8700/payments/1/pay

Then it posts the payment to the callback that it was given, until it is taken: providers do the
same, and a server may be down for a while. So a callback may come twice; the agent behind
`parley send` hears of it once.
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
    """Take down what is to be paid, and say where."""
    wanted = await request.json()
    id = str(len(payments) + 1)
    payments[id] = {**wanted, "id": id}
    return JSONResponse({"id": id, "page": str(request.url_for("pay", id=id))}, 201)


async def pay(request: Request) -> JSONResponse:
    """Pay, and have the callback made."""
    payment = payments[request.path_params["id"]]
    return JSONResponse({"paid": True}, background=BackgroundTask(call_back, payment))


async def call_back(payment: dict[str, Any]) -> None:
    """Post a payment to its callback, until the answer says that it was taken, or never will be."""
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
