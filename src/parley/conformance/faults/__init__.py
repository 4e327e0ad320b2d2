"""Faults of networks and servers, for ``FaultProxy``: each applies to one request and its response.

    proxy.fault(faults.cut(after_frames=2), on="SendStreamingMessage")
    proxy.fault(faults.status(429, retry_after=1), on="SendMessage", times=2)

Frames are the events of a stream, counted from 1; comments between events do not count.
"""

from parley.conformance.faults.fault import (
    Fault,
    FaultGate,
    cut,
    delay,
    drop,
    drop_answer,
    drop_frame,
    duplicate,
    duplicate_frame,
    overtaken,
    reorder,
    slow,
    status,
    wrong_version,
)

__all__ = [
    "Fault",
    "FaultGate",
    "cut",
    "delay",
    "drop",
    "drop_answer",
    "drop_frame",
    "duplicate",
    "duplicate_frame",
    "overtaken",
    "reorder",
    "slow",
    "status",
    "wrong_version",
]
