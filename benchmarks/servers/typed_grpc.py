"""What gRPC costs at the least: a handler of ``grpc.aio`` with one typed decode and one encode.

The messages are those of version 1.0, in protobuf's own classes. Arguments: the port.
"""

from __future__ import annotations

import sys
import uuid
from pathlib import Path

import grpc
import uvloop

from parley.wire.protobuf.messages import Messages

sys.path.insert(0, str(Path(__file__).parents[1]))
from processes import pin

MESSAGES = Messages("lf.a2a.v1")
Request = MESSAGES["SendMessageRequest"]
Response = MESSAGES["SendMessageResponse"]
ROLE_AGENT = 2


async def answer(request, context):
    """Answer a message with its text."""
    said = request.message
    response = Response()
    reply = response.message
    reply.message_id = str(uuid.uuid4())
    reply.context_id = said.context_id or str(uuid.uuid4())
    reply.role = ROLE_AGENT
    for part in said.parts:
        reply.parts.add(text=part.text)
    return response


async def main(port: int) -> None:
    """Serve until the process is stopped."""
    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(
        answer,
        request_deserializer=Request.FromString,
        response_serializer=Response.SerializeToString,
    )
    service = "lf.a2a.v1.A2AService"
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {"SendMessage": handler}),)
    )
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    pin(0)
    uvloop.run(main(int(sys.argv[1])))
