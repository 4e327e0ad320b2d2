"""Measure the codec beside protobuf's JSON codec and the standard library's, in one run.

    python benchmarks/codec.py

What is measured are a task of 13 KB (20 messages and an artifact), the same spelled in a way that
takes the lenient path, and one event of a stream. Rounds are interleaved, so that what else the
machine does hits all alike; the figures are the best of many rounds. The ratios carry over to
other machines, the microseconds do not.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "wire"))

import msgspec
import oracle

from parley.model.parts import Artifact, Message, Part, Role
from parley.model.service import StreamItem
from parley.model.struct import Timestamp
from parley.model.tasks import Task, TaskArtifactUpdateEvent, TaskState, TaskStatus
from parley.wire import jsonrpc, sse, versions
from parley.wire.json.protojson import check_limits, decode, encode

ROUNDS = 300
TEXT = "The quick brown fox jumps over the lazy dog. " * 10


def task() -> Task:
    """Return a task of 13 KB."""
    return Task(
        id="task-1",
        context_id="context-1",
        status=TaskStatus(
            state=TaskState.COMPLETED, timestamp=Timestamp.parse("2026-01-31T12:00:00.123Z")
        ),
        history=[
            Message(
                message_id=f"message-{n}",
                role=Role.AGENT if n % 2 else Role.USER,
                context_id="context-1",
                task_id="task-1",
                parts=[Part(text=TEXT)],
                metadata={"n": n, "tags": ["a", "b"]},
            )
            for n in range(20)
        ],
        artifacts=[
            Artifact(
                artifact_id="artifact-1",
                name="report",
                parts=[Part(text=TEXT + TEXT), Part(data={"x": [1, 2.5, None], "y": True})],
            )
        ],
    )


def event() -> TaskArtifactUpdateEvent:
    """Return one event of a stream."""
    return TaskArtifactUpdateEvent(
        task_id="7f3f4c1e-5a59-4b1c-9a63-0c7f0f0a2f11",
        context_id="1f0c2c1e-2a59-4b1c-9a63-0c7f0f0a2f22",
        artifact=Artifact(artifact_id="artifact-1", parts=[Part(text="a chunk of text")]),
        append=True,
    )


def best(cases: dict[str, Callable[[], object]], rounds: int = ROUNDS) -> dict[str, float]:
    """Return the microseconds that each case takes at best."""
    took = dict.fromkeys(cases, float("inf"))
    for _ in range(rounds):
        for name, case in cases.items():
            start = perf_counter_ns()
            for _ in range(10):
                case()
            took[name] = min(took[name], (perf_counter_ns() - start) / 10_000)
    return took


def compare(title: str, value: Task | TaskArtifactUpdateEvent) -> None:
    """Print the figures for one value."""
    kind, name = type(value), type(value).__name__
    body = encode(value)
    lenient = body.replace(b'"contextId"', b'"context_id"').replace(b'"taskId"', b'"task_id"')
    members, message = json.loads(body), oracle.parse(body, name)
    took = best(
        {
            "decode": lambda: decode(body, kind),
            "decode, lenient": lambda: decode(lenient, kind),
            "decode, stdlib json": lambda: json.loads(body),
            "decode, protobuf": lambda: oracle.parse(body, name),
            "encode": lambda: encode(value),
            "encode, stdlib json": lambda: json.dumps(members, separators=(",", ":")),
            "encode, protobuf": lambda: oracle.write(message),
        }
    )
    print(f"{title}, {len(body):,} bytes")
    for case, microseconds in took.items():
        verb = case.partition(",")[0]
        print(
            f"  {case:24}{microseconds:10.2f} µs"
            f"{microseconds / took[f'{verb}, stdlib json']:8.2f} of stdlib json"
            f"{took[f'{verb}, protobuf'] / microseconds:8.1f} times protobuf"
        )


def envelope() -> None:
    """Print what is around a value on its way."""
    params = b'{"message":{"messageId":"m-1","role":"ROLE_USER","parts":[{"text":"What time?"}]}}'
    call = jsonrpc.request(1, "SendMessage", params)
    request = jsonrpc.parse_request(call)
    chunk = encode(event())
    codec = versions.dialect(versions.LATEST).jsonrpc
    item = StreamItem(event(), 7, chunk)
    answer = jsonrpc.response(request.id, codec.write_event(item))
    stream = sse.frame(answer, 7)
    whole = jsonrpc.request(1, "SendMessage", encode(task()))
    took = best(
        {
            "parse a request": lambda: jsonrpc.parse_request(call),
            "check its limits": lambda: check_limits(call),
            "check those of 13 KB": lambda: check_limits(whole),
            "wrap an event": lambda: jsonrpc.response(request.id, codec.write_event(item)),
            "frame it": lambda: sse.frame(answer, 7),
            "read the frame": lambda: sse.SseParser().feed(stream),
            "unwrap the event": lambda: jsonrpc.parse_response(answer),
            "(stdlib json.loads of it)": lambda: json.loads(answer),
        }
    )
    print("envelope and frames")
    for case, microseconds in took.items():
        print(f"  {case:26}{microseconds:8.2f} µs")


if __name__ == "__main__":
    print(
        f"Python {sys.version.split()[0]}, msgspec {msgspec.__version__}, best of {ROUNDS} rounds"
    )
    compare("task", task())
    compare("event", event())
    envelope()
