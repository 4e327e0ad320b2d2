"""Several processes that serve one address: a parent forks them, and starts a dead one again."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NoReturn

import msgspec

from parley.model.backoff import Backoff
from parley.observe import metrics
from parley.server.settings import GrpcOptions
from parley.server.sockets import ListenError, listen, share

_RESTART = Backoff(0.5, 30.0)
_STABLE_SECONDS = 60.0
"""A worker that lived this long is started again without a delay."""

_SHARES_A_PORT = sys.platform.startswith("linux")
"""True where the system spreads connections over sockets of one port (SO_REUSEPORT)."""

_log = logging.getLogger("parley.server")


class ListeningAddress:
    """The address of all workers, reserved by their parent."""

    def __init__(self, host: str, port: int, grpc: GrpcOptions | None) -> None:
        """Reserve the ports. Raises ``ListenError``."""
        if os.name != "posix":
            raise ListenError(
                "several workers need fork, which this system lacks: start one server for each "
                "core, with its own port and the same store, behind a load balancer"
            )
        self.host, self.grpc = host, grpc
        self._reserved: list[socket.socket] = []
        self.sockets = listen(host, port, reserves=_SHARES_A_PORT)
        self.port = self.sockets[0].getsockname()[1]
        if grpc is not None:
            try:
                self._reserve(grpc, host if grpc.host is None else grpc.host)
            except ListenError:
                self.close()
                raise
        share((*self.sockets, *self._reserved))

    def _reserve(self, grpc: GrpcOptions, host: str) -> None:
        if (host, grpc.port) == (self.host, self.port):
            raise ListenError(f"HTTP and gRPC need a port each, and both are given {grpc.port}")
        self._reserved = listen(host, grpc.port, reserves=True)
        port = self._reserved[0].getsockname()[1]
        self.grpc = msgspec.structs.replace(grpc, port=port, shared=True)

    def listen(self) -> list[socket.socket]:
        """Return the sockets of a new worker. Raises ``ListenError``."""
        if not _SHARES_A_PORT:
            return self.sockets
        return listen(self.host, self.port, shares=True)

    def close(self) -> None:
        """Release the ports."""
        for sock in (*self.sockets, *self._reserved):
            sock.close()


class _Place(msgspec.Struct):
    """The place of one worker: when its last process began, and how many failed in a row."""

    began: float = 0.0
    failures: int = 0


class Workers:
    """The parent of ``count`` processes that call ``serve`` each.

    ``serve`` gets a function that it calls when it accepts requests. The first worker starts alone,
    and migrates the store; if it cannot start, its exception ends it as without workers, and the
    parent exits with its status. SIGTERM and SIGINT drain all workers, a second one kills them;
    SIGHUP reaches all, or drains them if the terminal has closed. Workers drain when the parent
    dies; after ``grace`` seconds more they exit.
    """

    def __init__(
        self, count: int, serve: Callable[[Callable[[], None]], None], *, grace: float
    ) -> None:
        self._count = count
        self._serve = serve
        self._grace = grace
        self._places: dict[int, _Place] = {}  # by process id
        self._signals = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
        self._is_ending = False
        self._was_hung_up = False

    def run(self, started: Callable[[], None], ended: Callable[[], None]) -> None:
        """Start the workers, call ``started``, and wait until a signal has ended them.

        ``ended`` is called at that signal. Raises ``SystemExit`` if the first worker cannot start.
        """
        if threading.current_thread() is not threading.main_thread():
            raise ValueError("workers take signals: serve in the main thread, or with workers=1")
        self._parent, self._ended = os.getpid(), ended
        self._before = {each: signal.signal(each, self._handle) for each in self._signals}
        self._has_terminal = os.isatty(0)
        # Workers read its end when their parent is gone, however that died.
        self._lifeline, self._held = os.pipe()
        try:
            self._start_first()
            if not self._is_ending:
                started()
            for _ in range(1, self._count):
                self._fork(_Place())
            while self._places:
                self._replace(*os.waitpid(-1, 0))
        finally:
            if os.getpid() == self._parent:  # not in a worker that could not start
                self._kill()
                os.close(self._held)
                os.close(self._lifeline)
                for number, handler in self._before.items():
                    signal.signal(number, handler)

    def _start_first(self) -> None:
        """Start the first worker, and wait until it serves. Raises ``SystemExit``."""
        heard, said = os.pipe()
        pid = self._fork(_Place(), said)
        os.close(said)
        is_ready = os.read(heard, 1)
        os.close(heard)
        if not is_ready:
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            del self._places[pid]
            if not self._is_ending:
                raise SystemExit(status if status > 0 else 1)

    def _fork(self, place: _Place, said: int | None = None, delay: float = 0.0) -> int:
        """Start a worker; ``said`` is written to when the first one serves."""
        if self._is_ending:
            return 0
        place.began = time.monotonic()
        with self._blocking_signals():  # until the new process is known, or has its handlers
            if pid := os.fork():
                self._places[pid] = place
                return pid
            self._places.clear()
            for number, handler in self._before.items():
                signal.signal(number, handler)
            if self._before[signal.SIGHUP] is signal.SIG_DFL:
                signal.signal(signal.SIGHUP, signal.SIG_IGN)
            os.setpgid(0, 0)  # Ctrl-C of a terminal is for the parent, which drains the workers
            os.close(self._held)
        threading.Thread(target=self._watch_parent, name="parley-parent", daemon=True).start()
        time.sleep(delay)
        self._work(said)

    def _work(self, said: int | None) -> NoReturn:
        """Serve in this process, and exit. Raises the errors of the first worker's start."""
        is_starting = said is not None

        def ready() -> None:
            nonlocal is_starting
            is_starting = False
            if said is not None:
                os.write(said, b"1")
                os.close(said)
            if self._was_hung_up:  # the options that the others have read since
                signal.raise_signal(signal.SIGHUP)

        status = 1
        try:
            self._serve(ready)
            status = 0
        except BaseException:
            if is_starting:
                raise
            _log.exception("worker %d failed", os.getpid())
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(status)  # the parent runs the rest of the program

    def _watch_parent(self) -> None:
        os.read(self._lifeline, 1)
        _log.error("the parent of worker %d is gone: the worker ends", os.getpid())
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(self._grace)
        os._exit(1)

    def _replace(self, pid: int, status: int) -> None:
        """Start another worker in the place of a dead one."""
        metrics.worker_ended(pid)
        place = self._places.pop(pid, None)
        if place is None or self._is_ending:
            return
        code = os.waitstatus_to_exitcode(status)
        lived = time.monotonic() - place.began
        place.failures = 0 if code == 0 or lived > _STABLE_SECONDS else place.failures + 1
        delay = _RESTART.delay(place.failures) if place.failures else 0.0
        how = f"was killed by signal {-code}" if code < 0 else f"exited with status {code}"
        _log.warning("worker %d %s; another one starts in %.1f seconds", pid, how, delay)
        self._fork(place, delay=delay)

    # -- signals ---------------------------------------------------------------------------------

    def _handle(self, number: int, frame: FrameType | None) -> None:
        is_closed = self._has_terminal and not os.isatty(0)
        if number == signal.SIGHUP and not is_closed:
            self._was_hung_up = True
            self._send(signal.SIGHUP)
        elif self._is_ending:
            self._send(signal.SIGKILL)
        else:
            self._is_ending = True
            self._ended()
            self._send(signal.SIGTERM)

    def _send(self, number: int) -> None:
        for pid in list(self._places):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _kill(self) -> None:
        """End the workers of a parent that fails."""
        self._is_ending = True
        self._send(signal.SIGKILL)
        while self._places:
            self._places.pop(os.waitpid(-1, 0)[0], None)

    @contextlib.contextmanager
    def _blocking_signals(self) -> Iterator[None]:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, self._signals)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
