"""The measured agents on fasta2a's server, with its broker and its store in memory.

It has no direct replies, and answers a message before it begins to work: there are streams, tasks
that are read, and tasks that wait.

Arguments: the port, and what the agent does: stream, wait or talk.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn
from fasta2a import FastA2A, Worker
from fasta2a.broker import InMemoryBroker
from fasta2a.schema import Artifact, Message, TaskIdParams, TaskSendParams
from fasta2a.storage import InMemoryStorage

sys.path.insert(0, str(Path(__file__).parents[2]))
from processes import pin


class Agent(Worker[Any]):
    """Does one of the things."""

    does = ""

    async def run_task(self, params: TaskSendParams) -> None:
        task_id, context_id = params["id"], params["context_id"]
        await self.storage.update_task(task_id, state="working")
        await self.publish_status(task_id, context_id, "working")
        if self.does == "wait":
            return  # nothing ends the task: its stream stays open
        if self.does == "talk":
            said = [
                Message(
                    role="agent",
                    parts=[{"text": f"message {n} of a conversation"}],
                    message_id=str(uuid.uuid4()),
                )
                for n in range(1, 20)
            ]
            await self.storage.update_task(task_id, state="completed", new_messages=said)
            return
        chunks = int(params["message"]["parts"][0]["text"])
        for n in range(chunks):
            chunk = Artifact(artifact_id="report", parts=[{"text": f"chunk {n} "}])
            await self.publish_artifact(
                task_id, context_id, chunk, append=n > 0, last_chunk=n == chunks - 1
            )
        await self.storage.update_task(task_id, state="completed")

    async def cancel_task(self, params: TaskIdParams) -> None:
        await self.storage.update_task(params["id"], state="canceled")

    def build_message_history(self, history: list[Message]) -> list[Any]:
        return list(history)

    def build_artifacts(self, result: Any) -> list[Artifact]:
        return []


def main(port: int, does: str) -> None:
    storage: InMemoryStorage[Any] = InMemoryStorage()
    broker = InMemoryBroker()
    agent = Agent(broker=broker, storage=storage)
    agent.does = does

    @asynccontextmanager
    async def lifespan(app: FastA2A) -> AsyncIterator[None]:
        async with app.task_manager, agent.run():
            yield

    url = f"http://127.0.0.1:{port}"
    app = FastA2A(storage=storage, broker=broker, name="Benchmark", url=url, lifespan=lifespan)
    uvicorn.run(app, port=port, log_level="warning", access_log=False)


if __name__ == "__main__":
    pin(0)
    main(int(sys.argv[1]), sys.argv[2])
