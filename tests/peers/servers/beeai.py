"""A BeeAI runnable with a script, served by its ``A2AServer``."""

import asyncio
import base64
import logging
import os
import socket
import sys
import threading
from typing import Unpack

from beeai_framework.adapters.a2a import A2AServer, A2AServerConfig
from beeai_framework.backend import AnyMessage, AssistantMessage
from beeai_framework.emitter import Emitter
from beeai_framework.runnable import Runnable, RunnableOptions, RunnableOutput, runnable_entry
from scripted import NAME, chunks


class Scripted(Runnable[RunnableOutput]):
    """It is scripted."""

    def __init__(self) -> None:
        super().__init__()
        self._emitter = Emitter.root().child(namespace=["scripted"], creator=self)

    @property
    def emitter(self) -> Emitter:
        return self._emitter

    @runnable_entry
    async def run(
        self, input: list[AnyMessage], /, **kwargs: Unpack[RunnableOptions]
    ) -> RunnableOutput:
        text = input[-1].text
        if text.startswith("slow"):
            await asyncio.Event().wait()
        given = [one.file for one in input[-1].content if one.type == "file"]
        files = [(len(base64.b64decode(one["file_data"])), one["format"]) for one in given]
        return RunnableOutput(output=[AssistantMessage("".join(chunks(text, files)))])


def main() -> None:
    logging.disable()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = A2AServer(config=A2AServerConfig(host="127.0.0.1", port=port))
    server.register(Scripted(), name=NAME, url=f"http://127.0.0.1:{port}")
    # It listens in a thread that ends with the process.
    threading.Thread(target=server.serve, daemon=True).start()
    while socket.socket().connect_ex(("127.0.0.1", port)):
        threading.Event().wait(0.05)
    print(f"http://127.0.0.1:{port}", file=sys.__stdout__, flush=True)
    sys.stdin.read()
    os._exit(0)


main()
