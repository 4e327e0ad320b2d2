"""Running an app on uvicorn: listening, draining, stopping."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import Future
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from parley.security.loopback import is_loopback
from parley.server.app import App, Settings
from parley.server.byte_budget import ByteReservation
from parley.server.grpc.options import GrpcOptions
from parley.server.http.connection import Limits, protocol_with
from parley.server.slow_readers import UnsentBytes
from parley.server.sockets import ListenError as ListenError
from parley.server.sockets import address_of, listen, most_connections

# Longer than the minute that load balancers commonly keep an idle connection: the side that
# sends requests should be the one that closes.
_IDLE_CONNECTION = 75

_SIGNALS = [signal.SIGINT, signal.SIGTERM]
if sys.platform == "win32":
    _SIGNALS.append(signal.SIGBREAK)

_LEAVE_SECONDS = 1.0
"""How long what is left is waited for when it was cancelled at the very end."""

_log = logging.getLogger("parley.server")


def run(
    app: App,
    *,
    host: str = "127.0.0.1",
    port: int = 9999,
    grace: int = 12,
    access_log: bool = False,
    grpc: GrpcOptions | None = None,
    on_listening: Callable[[str], None] | None = None,
) -> None:
    """Serve ``app`` until SIGINT or SIGTERM.

    ``port`` 0 takes a free one; ``on_listening`` is called with the address once requests are
    accepted. gRPC is served beside it where ``grpc`` says so. The
    first signal drains: streams end, and what is under way has ``grace`` seconds. The second one
    exits without waiting.

    Raises ``ListenError``, and what the app's startup raises.
    """
    sockets = listen(host, port)
    address = address_of(host, sockets)
    if app.is_open and not is_loopback(host):
        _log.warning("everyone who can reach %s can call these agents: nobody is identified", host)
    _tell_hosts(app, host, sockets)
    server = Server(
        app,
        grace=grace,
        kinds=1 if grpc is None else 2,
        access_log=access_log,
        started=lambda: on_listening(address) if on_listening is not None else None,
    )

    # Made here, because it imports gRPC, which takes a while: the event loop should not wait.
    grpc_serving = over_grpc(app, grpc, host, address, grace)

    async def main() -> None:
        try:
            await app.lifecycle.start()
            _collect_seldom()
            async with grpc_serving:
                await server.serve(sockets)
        finally:
            if not server.force_exit:
                await app.lifecycle.stop()

    runner = asyncio.Runner(loop_factory=server.config.get_loop_factory())
    try:
        runner.run(main())
    except (KeyboardInterrupt, asyncio.CancelledError):
        if not server.should_exit:
            raise
    finally:
        _leave(runner)
        _close(sockets)


def _leave(runner: asyncio.Runner) -> None:
    """Close a runner; functions that take no cancellation are left where they are.

    The runner would wait for them without end, and everything of ours is closed by now.
    """
    loop = runner.get_loop()
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        _, tasks = loop.run_until_complete(asyncio.wait(tasks, timeout=_LEAVE_SECONDS))
    if not tasks:
        runner.close()
        return
    _log.warning("%d task(s) ignored that they were cancelled, and are left", len(tasks))
    loop.set_exception_handler(lambda _, context: None)  # that they are destroyed while pending
    asyncio.set_event_loop(None)
    loop.close()


def _collect_seldom() -> None:
    """Have the garbage collector look less often, and not at what was there from the start.

    The process is a server's own, and a request leaves no cycles behind: looking for them after
    every 700 objects took one part in twenty of the time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def _tell_hosts(app: App, host: str, sockets: Iterable[socket.socket]) -> None:
    """Have an app know where it is listened for, and so which hosts it answers to."""
    app.hosts.listens(host, [sock.getsockname()[0] for sock in sockets])


def over_grpc(
    app: App, options: GrpcOptions | None, host: str, address: str, grace: float
) -> contextlib.AbstractAsyncContextManager[str]:
    """Serve an app over gRPC too while the context lasts, if there are ``options`` for that.

    ``host`` is what HTTP listens on, ``address`` where it is reached from this machine.
    """
    if options is None:
        return contextlib.nullcontext("")
    from parley.server.grpc.server import serving_grpc

    return serving_grpc(app, options, host=host, address=address, grace=grace)


@contextlib.asynccontextmanager
async def serving(
    app: ASGIApp,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    grace: int = 5,
    grpc: GrpcOptions | None = None,
) -> AsyncIterator[str]:
    """Serve an app on the running event loop for as long as the context lasts; its address.

    Any ASGI app will do; one of ours is served over gRPC too, where ``grpc`` says so. Signals are
    left alone.

    Raises ``ListenError``, and what the app's startup raises.
    """
    sockets = listen(host, port)
    try:
        async with contextlib.AsyncExitStack() as stack:
            if isinstance(app, App):
                _tell_hosts(app, host, sockets)
                await stack.enter_async_context(app.lifespan())
                address = address_of(host, sockets)
                await stack.enter_async_context(over_grpc(app, grpc, host, address, grace))
            ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            server = Server(
                app,
                grace=grace,
                kinds=1 if grpc is None else 2,
                signals=False,
                started=lambda: ready.set_result(None),
            )
            task = asyncio.create_task(server.serve(sockets))
            try:
                await asyncio.wait({task, ready}, return_when=asyncio.FIRST_COMPLETED)
                if not ready.done():
                    raise ListenError("the server ended before it took a request")
                yield address_of(host, sockets)
            finally:
                server.end()
                await task
    finally:
        _close(sockets)


@contextlib.contextmanager
def serving_in_thread(
    app: ASGIApp, *, host: str = "127.0.0.1", port: int = 0, grace: int = 5
) -> Iterator[str]:
    """Serve an app in a thread of its own for as long as the context lasts; its address.

    For callers without an event loop. Raises what ``serving`` raises.
    """
    address: Future[str] = Future()
    over: Future[None] = Future()

    async def main() -> None:
        async with serving(app, host=host, port=port, grace=grace) as url:
            address.set_result(url)
            await asyncio.wrap_future(over)

    def work() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:
            if address.done():
                raise
            address.set_exception(error)

    thread = threading.Thread(target=work, name="parley-server", daemon=True)
    thread.start()
    try:
        yield address.result()
    finally:
        over.set_result(None)
        thread.join()


class Server(uvicorn.Server):
    """uvicorn, whose app hears of the end before the grace period begins.

    uvicorn waits for responses that are under way and then cancels them, which is no end for a
    stream. Here the app is drained first. ``kinds`` is how many kinds of connections the process
    has to share its files among.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        grace: int,
        kinds: int,
        started: Callable[[], None],
        access_log: bool = False,
        signals: bool = True,
    ) -> None:
        settings = app.settings if isinstance(app, App) else Settings()
        super().__init__(
            uvicorn.Config(
                app,
                http=protocol_with(
                    Limits(
                        connections=min(settings.max_connections, most_connections(kinds)),
                        head=settings.head_timeout,
                        body=settings.body_timeout,
                        held=app.held if isinstance(app, App) else ByteReservation(settings),
                        unsent=app.unsent if isinstance(app, App) else UnsentBytes(settings),
                    )
                ),
                # Whoever runs one of our apps starts it, and hears of what goes wrong.
                lifespan="off" if isinstance(app, App) else "auto",
                ws="none",
                # Otherwise uvicorn believes what a peer on this machine says of scheme and client.
                proxy_headers=settings.trust_proxy,
                log_config=None,
                log_level="warning",
                access_log=access_log,
                server_header=False,
                timeout_keep_alive=_IDLE_CONNECTION,
                timeout_graceful_shutdown=grace,
            )
        )
        if access_log:
            logging.getLogger("uvicorn.access").setLevel(logging.INFO)
        self._drain = app.lifecycle.drain if isinstance(app, App) else None
        self._started = started
        self._signals = signals
        self._over = asyncio.Event()
        self._interrupted = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until ``end`` is called or a signal comes."""
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self.servers = []
        try:
            await super().serve(sockets)
        finally:
            # However it ended: uvloop cannot be closed while something listens.
            for server in self.servers:
                server.close()

    def end(self) -> None:
        """Begin the end: drain the app, then let uvicorn wait for what is under way."""
        self.should_exit = True
        if self._drain is not None:
            self._drain()
        self._over.set()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Take a signal: the first begins the end, the second does not wait for it."""
        if self._loop is None:
            return
        if not self._interrupted:
            self._interrupted = True
            self._loop.call_soon_threadsafe(self.end)
        elif self._task is not None:
            self.force_exit = True
            self._loop.call_soon_threadsafe(self._task.cancel)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take the signals that end a server, while it runs."""
        # Unlike uvicorn's own this does not raise them again at the end, where the process would
        # die of one: our caller has things to do after that.
        if not self._signals or threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to take requests."""
        await super().startup(sockets)
        self._started()

    async def main_loop(self) -> None:
        """Wait for the end, without uvicorn's looking out for it ten times a second."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await self._over.wait()


def _close(sockets: list[socket.socket]) -> None:
    for sock in sockets:
        sock.close()
