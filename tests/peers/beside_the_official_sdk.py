"""Runs in one process: a2a-sdk's messages and ours, with one message from each to the other.

The argument is the folder with the official SDK's packages. Parley and shared dependencies come
from the environment of the interpreter.
"""

import asyncio
import sys

sys.path.append(sys.argv[1])


async def main(version: str) -> None:
    import grpc

    import parley
    from parley.server.run import serving
    from parley.server.settings import GrpcOptions
    from parley.wire.protobuf.messages import POOL

    if version == "1.3":
        from a2a.types import a2a_pb2, a2a_pb2_grpc

        spoken, package = "1.0", "lf.a2a.v1"
        words = {"parts": [a2a_pb2.Part(text="hello")]}
    else:
        from a2a.grpc import a2a_pb2, a2a_pb2_grpc

        spoken, package = "0.3", "a2a.v1"
        words = {"content": [a2a_pb2.Part(text="hello")]}
    said = a2a_pb2.Message(message_id="m", role=a2a_pb2.ROLE_USER, **words)
    metadata = (("a2a-version", spoken),)

    agent = parley.Agent("Echo", description="Says it again.")

    @agent.skill(tags=["echo"])
    async def echo(turn: parley.Turn) -> str:
        """Say it again."""
        return turn.text

    app = parley.asgi(agent)
    async with serving(app, grpc=GrpcOptions(port=0)) as url:
        async with grpc.aio.insecure_channel(app.grpc.beside(url)) as channel:
            stub = a2a_pb2_grpc.A2AServiceStub(channel)
            request = a2a_pb2.SendMessageRequest()
            getattr(request, "message" if spoken == "1.0" else "request").CopyFrom(said)
            answer = await stub.SendMessage(request, metadata=metadata)
        reply = answer.message if spoken == "1.0" else answer.msg
        parts = reply.parts if spoken == "1.0" else reply.content
        assert parts[0].text == "hello", answer

    class Servicer(a2a_pb2_grpc.A2AServiceServicer):
        async def SendMessage(self, request, context):
            asked = request.message if spoken == "1.0" else request.request
            answer = a2a_pb2.SendMessageResponse()
            (answer.message if spoken == "1.0" else answer.msg).CopyFrom(asked)
            (answer.message if spoken == "1.0" else answer.msg).role = a2a_pb2.ROLE_AGENT
            return answer

    server = grpc.aio.server()
    a2a_pb2_grpc.add_A2AServiceServicer_to_server(Servicer(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    card = agent.card((_interface(port, spoken),))
    async with parley.connect(card, binding="GRPC") as remote:
        assert (await remote.send("hello back")).text == "hello back"
    await server.stop(None)

    ours = POOL.FindMessageTypeByName(f"{package}.Task")
    theirs = a2a_pb2.Task.DESCRIPTOR
    assert ours.full_name == theirs.full_name
    assert ours is not theirs
    print("both")


def _interface(port: int, version: str):
    from parley.model.cards import AgentInterface

    return AgentInterface(
        url=f"127.0.0.1:{port}", protocol_binding="GRPC", protocol_version=version
    )


asyncio.run(main(sys.argv[2]))
