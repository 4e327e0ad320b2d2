"""A fasta2a worker with a script, served by ``FastA2A``."""

import asyncio
import base64
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

from fasta2a import FastA2A, Worker
from fasta2a.broker import InMemoryBroker
from fasta2a.schema import Artifact, Message, TaskIdParams, TaskSendParams
from fasta2a.storage import InMemoryStorage
from scripted import NAME, chunks, serve


class Scripted(Worker):
    async def run_task(self, params: TaskSendParams) -> None:
        task = await self.storage.load_task(params["id"])
        where = task["id"], task["context_id"]
        await self.storage.update_task(task["id"], state="working")
        await self.publish_status(*where, "working")
        parts = params["message"]["parts"]
        text = " ".join(part["text"] for part in parts if "text" in part)
        if text.startswith("slow"):
            return  # continues elsewhere, until it is canceled
        files = [
            (len(base64.b64decode(part["raw"])), part["media_type"])
            for part in parts
            if "raw" in part
        ]
        pieces = chunks(text, files)
        artifact = str(uuid4())
        for n, piece in enumerate(pieces if len(pieces) > 1 else ()):
            chunk = Artifact(artifact_id=artifact, parts=[{"text": piece}])
            await self.publish_artifact(*where, chunk, append=n > 0, last_chunk=False)
            await asyncio.sleep(0.02)
        whole = Artifact(artifact_id=artifact, parts=[{"text": "".join(pieces)}])
        if len(pieces) == 1:
            await self.publish_artifact(*where, whole)
        await self.storage.update_task(task["id"], state="completed", new_artifacts=[whole])

    async def cancel_task(self, params: TaskIdParams) -> None:
        await self.storage.update_task(params["id"], state="canceled")

    def build_message_history(self, history: list[Message]) -> list[Any]:
        return list(history)

    def build_artifacts(self, result: Any) -> list[Artifact]:
        return []


def app(host: str, port: int) -> FastA2A:
    storage, broker = InMemoryStorage(), InMemoryBroker()
    worker = Scripted(storage=storage, broker=broker)

    @asynccontextmanager
    async def lifespan(app: FastA2A):
        async with app.task_manager, worker.run():
            yield

    url = f"http://{host}:{port}"
    return FastA2A(storage=storage, broker=broker, name=NAME, url=url, lifespan=lifespan)


serve(app)
