"""A client of the envelope protocol, written from docs/reference/envelope-specification.md alone.

    python from_the_page.py URL KEY

``URL`` is the address of an agent ``one``, next to an agent ``two``, both of the type ``library``;
``KEY`` is the secret of the key ``key-1`` of ``shop``, in base64url. It prints the responses as
JSON. It uses the standard library, ``websockets`` and, for Ed25519, ``cryptography``.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import sys
import urllib.error
import urllib.request
import uuid
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

Json = dict[str, Any]
LATER = 10.0


def now() -> str:
    from datetime import UTC, datetime

    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def message(kind: str, payload: Json, *, source: str, **members: Any) -> Json:
    """Return a message with the six required members."""
    info: Json = {name: members.pop(name) for name in ("subType", "priority") if name in members}
    if "correlationId" in members:
        info["correlationId"] = members.pop("correlationId")
    return {
        "version": "1.0",
        "messageId": members.pop("messageId", uuid.uuid4().hex),
        "timestamp": now(),
        "source": {"agentId": source},
        "message": {"type": kind, **info},
        "payload": payload,
        **members,
    }


def request(action: str, parameters: Any = None, *, source: str = "page", **members: Any) -> Json:
    """Return a REQUEST; ``metadata`` belongs to its payload."""
    payload: Json = {"action": action}
    if parameters is not None:
        payload["parameters"] = parameters
    if "metadata" in members:
        payload["metadata"] = members.pop("metadata")
    return message("REQUEST", payload, source=source, **members)


def canonical(members: Json) -> bytes:
    """Encode by RFC 8785, for messages without fractions and rare characters."""
    security = {k: v for k, v in members["security"].items() if k != "signature"}
    bare = {**members, "security": security}
    return json.dumps(bare, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def unpadded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def signed(members: Json, secret: bytes) -> Json:
    """Return the message with a fresh signature by ``key-1``."""
    security = {
        "timestamp": now(),
        "nonce": uuid.uuid4().hex,
        "keyId": "key-1",
        "algorithm": "HMAC-SHA256",
    }
    members = {**members, "security": security}
    mac = hmac.new(secret, canonical(members), hashlib.sha256).digest()
    return {**members, "security": {**security, "signature": unpadded(mac)}}


class Socket:
    """One WebSocket: it answers HEARTBEATs, and sorts responses by request."""

    def __init__(self, socket: ClientConnection, source: str) -> None:
        self.socket = socket
        self.source = source
        self.beats = 0
        self.subprotocol = socket.subprotocol
        self._answers: dict[str, asyncio.Queue[Json]] = {}
        self.requests: asyncio.Queue[Json] = asyncio.Queue()
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def open(cls, url: str, source: str = "page", **headers: str) -> Socket:
        address = url.replace("http", "ws", 1)  # ws for http, wss for https
        protocols = [Subprotocol("parley.envelope.v1")]
        return cls(
            await connect(address, subprotocols=protocols, additional_headers=headers, proxy=None),
            source,
        )

    async def _read(self) -> None:
        try:
            async for text in self.socket:
                received = json.loads(text)
                info = received["message"]
                if info["type"] == "HEARTBEAT" and not info.get("correlationId"):
                    self.beats += 1
                    id = received["messageId"]
                    beat = message("HEARTBEAT", {}, source=self.source, correlationId=id)
                    await self.send(beat)
                elif info["type"] == "REQUEST":
                    self.requests.put_nowait(received)
                else:
                    self.of(info.get("correlationId", "")).put_nowait(received)
        except ConnectionClosed:
            pass

    def of(self, id: str) -> asyncio.Queue[Json]:
        return self._answers.setdefault(id, asyncio.Queue())

    async def send(self, members: Json) -> str:
        await self.socket.send(json.dumps(members))
        return str(members["messageId"])

    async def next(self, id: str) -> Json:
        async with asyncio.timeout(LATER):
            return await self.of(id).get()

    async def ask(self, members: Json) -> Json:
        """Return the RESPONSE, or the HEARTBEAT, to a message."""
        id = await self.send(members)
        while (answer := await self.next(id))["message"]["type"] == "EVENT":
            pass
        return answer

    async def all(self, members: Json) -> list[Json]:
        """Return all responses of one agent to a REQUEST."""
        id, is_command = await self.send(members), members["message"].get("subType") == "command"
        found: list[Json] = []
        while not found or not is_last(found[-1], is_command):
            found.append(await self.next(id))
        return found

    async def close(self) -> None:
        await self.socket.close()
        await self._reading

    async def cut(self) -> None:
        """Break the connection without closing it."""
        self.socket.transport.abort()
        await self._reading


def is_last(answer: Json, is_command: bool) -> bool:
    status = answer["payload"]["status"]
    if answer["message"]["type"] == "RESPONSE":
        return not (is_command and status == "accepted")
    return is_command and status not in ("partial", "accepted")


def post(url: str, members: Json | bytes, **headers: str) -> tuple[int, str, list[Json]]:
    """Return status, media type and messages of the response to a POST."""
    body = members if isinstance(members, bytes) else json.dumps(members).encode()
    asked = urllib.request.Request(url, body, {"Content-Type": "application/json", **headers})
    try:
        with urllib.request.urlopen(asked, timeout=LATER) as answer:
            status, kind, text = answer.status, answer.headers.get_content_type(), answer.read()
    except urllib.error.HTTPError as error:
        status, kind, text = error.code, error.headers.get_content_type(), error.read()
    if kind == "text/event-stream":
        lines = text.decode().splitlines()
        return status, kind, [json.loads(line[5:]) for line in lines if line.startswith("data:")]
    return status, kind, [json.loads(text)] if text else []


def get(url: str) -> Json:
    with urllib.request.urlopen(url, timeout=LATER) as answer:
        found: Json = json.loads(answer.read())
    return found


def code(answer: Json) -> str:
    return str(answer["payload"]["error"]["code"])


def numbers(answers: list[Json]) -> list[int]:
    found = [each["payload"]["metadata"].get("sequence") for each in answers]
    return [number for number in found if number is not None]


async def requests_and_streams(url: str) -> Json:
    socket = await Socket.open(url)
    query = await socket.ask(request("search", {"query": "tides"}))
    by_post = await asyncio.to_thread(post, url, request("search", {"query": "tides"}))
    stream = await socket.all(request("count", metadata={"stream": True}))
    sse = await asyncio.to_thread(post, url, request("count", subType="command"))
    notified = await asyncio.to_thread(
        post, url, request("search", {"query": "x"}, subType="notification")
    )
    wrong = await socket.ask(request("search", {"query": 7}))
    unknown = await asyncio.to_thread(post, url, request("nothing"))
    none = await asyncio.to_thread(post, url, b"no json")
    # A question, which a further REQUEST answers.
    asked = await socket.ask(request("lend"))
    task = asked["payload"]["metadata"]["taskId"]
    lent = await socket.ask(request("lend", "Tides", metadata={"taskId": task}))
    # The same messageId means the same request; other content is rejected.
    twice = request("search", {"query": "once"})
    first, again = await socket.ask(twice), await socket.ask({**twice, "timestamp": now()})
    reused = await socket.ask({**request("count"), "messageId": twice["messageId"]})
    await socket.close()
    return {
        "subprotocol": socket.subprotocol,
        "results": query["payload"]["results"],
        "same by POST": by_post[2][0]["payload"]["results"] == query["payload"]["results"],
        "correlation": by_post[2][0]["message"]["type"],
        "stream": [each["payload"]["status"] for each in (stream[0], stream[-1])],
        "stream numbers": numbers(stream) == sorted(set(numbers(stream))),
        "sse": [sse[1], *[each["payload"]["status"] for each in (sse[2][0], sse[2][-1])]],
        "notification": notified[0],
        "violation": wrong["payload"]["error"]["violations"][0]["field"],
        "unknown": [unknown[0], code(unknown[2][0])],
        "no json": [none[0], code(none[2][0])],
        "question": [asked["payload"]["status"], lent["payload"]["results"][0]["text"]],
        "once": first["payload"]["results"] == again["payload"]["results"],
        "reused": code(reused),
    }


async def resumption(url: str) -> Json:
    """A command whose socket is cut resumes after the last EVENT, over another socket."""
    asked = request("count", subType="command")
    first = await Socket.open(url)
    id = await first.send(asked)
    seen = [await first.next(id) for _ in range(4)]
    await first.cut()
    metadata = {"after": numbers(seen)[-1], "retryCount": 1}
    again = {**asked, "payload": {**asked["payload"], "metadata": metadata}, "timestamp": now()}
    second = await Socket.open(url)
    rest = await second.all(again)
    # A client can also follow a task by its id.
    task = seen[0]["payload"]["metadata"]["taskId"]
    follow = request("a2a.SubscribeToTask", {"id": task}, metadata={"after": 2})
    followed = await second.all(follow)
    await second.close()
    whole = numbers([*seen, *rest])
    return {
        "no gap and nothing twice": whole == [*range(1, len(whole) + 1)],
        "ends": rest[-1]["payload"]["status"],
        "one task": len({each["payload"]["metadata"]["taskId"] for each in [*seen, *rest]}),
        "followed": numbers(followed) == whole[2:],
    }


async def signatures(url: str, secret: bytes) -> Json:
    site = url.split("/one/")[0]
    target = {"agentId": "one"}
    good = signed(request("search", {"query": "q"}, source="shop", target=target), secret)
    answered = (await asyncio.to_thread(post, url, good))[2][0]
    [public] = [
        each
        for each in get(f"{site}/.well-known/jwks.json")["keys"]
        if each["kty"] == "OKP" and each["kid"] == answered["security"]["keyId"]
    ]
    try:
        signature = decoded(answered["security"]["signature"])
        key = Ed25519PublicKey.from_public_bytes(decoded(public["x"]))
        key.verify(signature, canonical(answered))
        is_theirs = True
    except InvalidSignature:
        is_theirs = False
    replayed = await asyncio.to_thread(post, url, good)
    anew = (await asyncio.to_thread(post, url, signed(good, secret)))[2][0]
    forged = signed(request("search", {"query": "q"}, source="shop", target=target), b"f" * 32)
    altered = signed(request("search", {"query": "q"}, source="shop", target=target), secret)
    altered["payload"]["parameters"]["query"] = "another"
    untargeted = signed(request("search", {"query": "q"}, source="shop"), secret)
    old = request("search", {"query": "q"}, source="shop", target=target)
    security = {"timestamp": "2020-01-01T00:00:00Z", "nonce": uuid.uuid4().hex, "keyId": "key-1"}
    old["security"] = security
    mac = hmac.new(secret, canonical(old), hashlib.sha256).digest()
    old["security"] = {**security, "signature": unpadded(mac)}
    socket = await Socket.open(url)
    begun = await socket.ask(signed({**good, "messageId": uuid.uuid4().hex}, secret))
    unsigned = await socket.ask(request("search", {"query": "q"}, source="shop"))
    await socket.close()
    stranger = await asyncio.to_thread(post, url, request("search", {"query": "q"}, source="shop"))
    refusals = {}
    for name, each in (
        ("forged", forged), ("altered", altered), ("untargeted", untargeted), ("old", old),
    ):  # fmt: skip
        refusals[name] = code((await asyncio.to_thread(post, url, each))[2][0])
    return {
        "accepted": answered["payload"]["status"],
        "answer is signed by the server": is_theirs,
        "replayed": [replayed[0], code(replayed[2][0])],
        "signed anew": anew["payload"]["results"] == answered["payload"]["results"],
        **refusals,
        "on a socket that signed": [begun["payload"]["status"], code(unsigned)],
        "stranger with the id of a key": code(stranger[2][0]),
    }


async def broadcasts(url: str) -> Json:
    library = {"agentType": "library", "routingStrategy": "broadcast"}
    socket = await Socket.open(url)
    id = await socket.send(request("search", {"query": "q"}, target=library))
    query = [await socket.next(id) for _ in range(3)]
    id = await socket.send(request("count", target=library, subType="command"))
    accepted = [await socket.next(id) for _ in range(2)]
    summary = await socket.next(id)
    open_ones = {
        each["agentId"] for each in summary["payload"]["results"] if each["status"] == "accepted"
    }
    followed: dict[str, list[Json]] = {}
    while open_ones:
        event = await socket.next(id)
        by = event["payload"]["metadata"]["agentId"]
        followed.setdefault(by, []).append(event)
        if event["payload"]["status"] != "partial":
            open_ones.discard(by)
    balanced = await socket.ask(
        request("search", {"query": "q"}, target={**library, "routingStrategy": "load-balance"})
    )
    two = await socket.ask(request("search", {"query": "q"}, target={"agentId": "two"}))
    nobody = await socket.ask(request("search", {"query": "q"}, target={"agentId": "nobody"}))
    await socket.close()
    return {
        "query": [each["message"]["type"] for each in query],
        "outcomes": {each["agentId"]: each["status"] for each in query[-1]["payload"]["results"]},
        "accepted": [each["payload"]["status"] for each in accepted],
        "summary": [summary["message"]["type"], summary["payload"]["status"]],
        "ends": sorted(each[-1]["payload"]["status"] for each in followed.values()),
        "in order": all(numbers(each) == sorted(set(numbers(each))) for each in followed.values()),
        "balanced": balanced["payload"]["status"],
        "direct": two["payload"]["metadata"]["agentId"],
        "nobody": code(nobody),
    }


async def order_and_cancellation(url: str) -> Json:
    """Here the server handles one REQUEST of a connection at a time."""
    socket = await Socket.open(url)
    held = await socket.send(request("hold"))
    while (await asyncio.to_thread(post, url, request("held")))[2][0]["payload"]["results"] == [0]:
        await asyncio.sleep(0.01)
    ids = {
        await socket.send(request("note", {"name": priority}, priority=priority)): priority
        for priority in ("low", "normal", "urgent")
    }
    beat = await socket.ask(message("HEARTBEAT", {}, source="page"))
    late = await socket.ask(request("note", {"name": "late"}, metadata={"timeout": 50}))
    await asyncio.to_thread(post, url, request("release"))
    await socket.next(held)
    for id in ids:
        await socket.next(id)
    noted = await socket.ask(request("noted"))
    # One task is canceled; the client stops reading the EVENTs of another.
    command = await socket.send(request("endless", subType="command"))
    task = (await socket.next(command))["payload"]["metadata"]["taskId"]
    canceled = await socket.ask(request("a2a.CancelTask", {"id": task}))
    while (last := await socket.next(command))["payload"]["status"] == "partial":
        pass
    left = await socket.send(request("endless", subType="command"))
    task = (await socket.next(left))["payload"]["metadata"]["taskId"]
    await socket.send(message("EVENT", {"action": "stop"}, source="page", correlationId=left))
    state = await socket.ask(request("a2a.GetTask", {"id": task}))
    await socket.ask(request("a2a.CancelTask", {"id": task}))
    while socket.beats < 2:
        await asyncio.sleep(0.02)
    await socket.close()
    return {
        "order": noted["payload"]["results"][0],
        "heartbeat": [beat["message"]["type"], sorted(beat["payload"])],
        "late": code(late),
        "canceled": canceled["payload"]["results"][0]["status"]["state"],
        "last event": [last["payload"]["status"], last["payload"]["error"]["code"]],
        "left alone": state["payload"]["results"][0]["status"]["state"],
    }


async def registration(url: str) -> Json:
    card = {"agentInfo": {"id": "stock", "type": "warehouse"}, "capabilities": [{"name": "stock"}]}
    agent = await Socket.open(url, "stock", Authorization="Bearer stock-token")
    registered = await agent.ask(request("registry.register", card, source="stock"))
    caller = await Socket.open(url)
    asked = await caller.send(request("stock", {"item": "bolt"}, target={"agentId": "stock"}))
    async with asyncio.timeout(LATER):
        taken = await agent.requests.get()
    payload = {"status": "success", "results": [{"count": 7}]}
    id = taken["messageId"]
    await agent.send(message("RESPONSE", payload, source="stock", correlationId=id))
    answer = await caller.next(asked)
    beat = await agent.ask(request("registry.heartbeat", source="stock"))
    left = await agent.ask(request("registry.deregister", source="stock"))
    gone = await caller.ask(request("stock", {"item": "bolt"}, target={"agentId": "stock"}))
    strange = await caller.ask(request("registry.register", {"agentInfo": {"id": "page"}}))
    mismatch = await agent.ask(request("search", {"query": "q"}, source="another"))
    known = await asyncio.to_thread(post, url, request("search", {"query": "q"}, source="stock"))
    await agent.close()
    await caller.close()
    return {
        "registered": registered["payload"]["results"],
        "asked": [taken["payload"]["action"], taken["payload"]["parameters"], taken["source"]],
        "answer": [answer["payload"]["results"], answer["payload"]["metadata"]["agentId"]],
        "heartbeat": beat["payload"]["results"][0]["agents"],
        "left": left["payload"]["results"],
        "gone": code(gone),
        "stranger": code(strange),
        "another source": code(mismatch),
        "stranger with its id": [known[0], code(known[2][0])],
    }


def addresses(url: str) -> Json:
    card = get(f"{url}/card")
    a2a = get(url.removesuffix("/envelope") + "/.well-known/agent-card.json")
    listed = [
        each["url"]
        for each in a2a["supportedInterfaces"]
        if each["protocolBinding"] == "urn:parley:envelope:v1"
    ]
    return {
        "id": card["agentInfo"]["id"],
        "primary": card["endpoints"]["primary"] == url.replace("http", "ws", 1),
        "backup": card["endpoints"]["backup"] == url,
        "on the A2A card": listed == [url],
    }


async def main(url: str, key: str) -> None:
    said = {
        "requests": await requests_and_streams(url),
        "resumption": await resumption(url),
        "signatures": await signatures(url, decoded(key)),
        "broadcasts": await broadcasts(url),
        "order": await order_and_cancellation(url.replace("/one/", "/narrow/")),
        "registration": await registration(url),
        "addresses": await asyncio.to_thread(addresses, url),
        "imported": sorted(name for name in sys.modules if name.partition(".")[0] == "parley"),
    }
    print(json.dumps(said))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
