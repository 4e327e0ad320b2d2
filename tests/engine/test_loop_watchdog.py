"""The watchdog of the event loop, beside other threads."""

from __future__ import annotations

import subprocess
import sys

LOOKS = """
import gc, sys, threading, time
from parley.engine.maintenance import frame_of

gc.callbacks.append(lambda phase, info: time.sleep(0))  # passes the GIL on, as finalizers do
gc.set_threshold(2, 1, 1)
sys.setswitchinterval(1e-5)
main, over = threading.get_ident(), threading.Event()

def deep(depth):
    deep(depth - 1) if depth else over.wait()

def look():
    for _ in range(300):
        assert frame_of(main) is not None

threads = [threading.Thread(target=deep, args=(20,), daemon=True) for _ in range(10)]
threads += [looking := threading.Thread(target=look), also := threading.Thread(target=look)]
for thread in threads:
    thread.start()
while looking.is_alive() or also.is_alive():  # to begin a thread takes the same lock
    short = threading.Thread(target=int)
    short.start()
    short.join()
over.set()
assert gc.isenabled() and frame_of(1) is None
"""


def test_who_looks_at_the_stack_of_a_thread_never_stops_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", LOOKS], timeout=60, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
