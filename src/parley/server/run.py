"""Runs an app: listens, checks who can reach it, serves HTTP and gRPC, drains, stops."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterable

from starlette.types import ASGIApp, Scope

from parley.security.networks import is_loopback
from parley.server.app import App, Settings
from parley.server.http1.server import Http1Server, lifespan_of
from parley.server.http1.serving import HttpServing, KnownProxies, Upgrades
from parley.server.limits import ByteReservation, UnsentBytes
from parley.server.log import log_access
from parley.server.settings import GrpcOptions, TlsOptions
from parley.server.sockets import ListenError as ListenError
from parley.server.sockets import address_of, listen, most_connections
from parley.server.tls import Handshakes, ReloadingTls, asked_of_callers, lacks_certificates
from parley.server.websocket.serving import SocketServing

# Longer than the minute that load balancers commonly keep an idle connection: the side that sends
# requests should be the one that closes.
_IDLE_CONNECTION = 75

_CANCEL_SECONDS = 1.0
"""The time to wait at the very end for cancelled tasks."""

_log = logging.getLogger("parley.server")


def run(
    app: App,
    *,
    host: str = "127.0.0.1",
    port: int = 9999,
    grace: int = 12,
    access_log: bool = False,
    grpc: GrpcOptions | None = None,
    tls: TlsOptions | None = None,
    allow_anonymous: bool = False,
    workers: int = 1,
    on_listening: Callable[[str], None] | None = None,
) -> None:
    """Serve ``app`` until SIGINT or SIGTERM, in this process or in several ``workers``.

    ``port`` 0 selects a free port; ``on_listening`` is called with the address once the server
    accepts requests. ``grpc`` serves gRPC in addition to HTTP. With ``tls`` the server uses HTTPS,
    and gRPC uses the same certificate unless it has its own. The first signal drains: streams end,
    and current requests have ``grace`` seconds. The second one exits at once. SIGHUP reloads files
    and settings, or, if the terminal has closed, ends the server.

    Without ``allow_anonymous``, an app that everyone may call is not served on addresses that other
    machines can reach. Raises ``ListenError``, and the errors of the app's startup.
    """
    encryption = _encryption(app, tls)
    if encryption is not None:
        app.lifecycle.on_reload(encryption.reload)
    shared = None
    if workers > 1:
        from parley.server.workers import ListeningAddress, Workers

        shared = ListeningAddress(host, port, grpc)
    sockets = listen(host, port) if shared is None else shared.sockets
    try:
        check_exposure(app, host, sockets, grpc, allow_anonymous=allow_anonymous)
        address = address_of(host, sockets, _scheme(tls))
        warn_of_plain_text(app, host, sockets, grpc, encryption)
        _set_listener(app, host, sockets)

        def started() -> None:
            if on_listening is not None:
                on_listening(address)

        def serve(own: list[socket.socket], ready: Callable[[], None]) -> None:
            over = grpc if shared is None else shared.grpc
            server = server_of(
                app,
                grace=grace,
                kinds=1 if over is None else 2,
                access_log=access_log,
                tls=encryption,
                started=ready,
                exits_at_once=shared is None,
            )
            # Made here, because it imports gRPC, which is slow and should not block the event loop.
            grpc_serving = over_grpc(app, over, host, address, grace, encryption)
            around = _watching(encryption), grpc_serving, _reloading(app, server)
            _run(app, server, own, *around)

        if shared is None:
            serve(sockets, started)
        else:
            app.grpc.port = None if shared.grpc is None else shared.grpc.port
            parent = Workers(workers, lambda ready: serve(shared.listen(), ready), grace=grace + 2)
            parent.run(started, shared.close)
    finally:
        _close(sockets)


def _run(
    app: App,
    server: Http1Server,
    sockets: list[socket.socket],
    *around: contextlib.AbstractAsyncContextManager[object],
) -> None:
    """Run a server on an event loop of its own, inside of contexts."""

    async def main() -> None:
        try:
            await app.lifecycle.start()
            _tune_garbage_collector()
            async with contextlib.AsyncExitStack() as stack:
                for each in around:
                    await stack.enter_async_context(each)
                await server.serve(sockets)
        finally:
            if not server.force_exit:
                await app.lifecycle.stop()

    runner = asyncio.Runner(loop_factory=_loop_factory())
    try:
        runner.run(main())
    except (KeyboardInterrupt, asyncio.CancelledError):
        if not server.should_exit:
            raise
    finally:
        _close_runner(runner)


@contextlib.asynccontextmanager
async def _reloading(app: App, server: Http1Server) -> AsyncIterator[None]:
    """Reload on SIGHUP within the context. A closed terminal sends SIGHUP too: the server ends."""
    if sys.platform == "win32" or threading.current_thread() is not threading.main_thread():
        yield
        return
    loop, asked, has_terminal = asyncio.get_running_loop(), asyncio.Event(), os.isatty(0)

    async def reload() -> None:
        while await asked.wait():
            asked.clear()
            if has_terminal and not os.isatty(0):
                server.end()
            else:
                await app.lifecycle.reload()

    before = signal.signal(signal.SIGHUP, lambda *_: loop.call_soon_threadsafe(asked.set))
    task = asyncio.create_task(reload())
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)
        task.cancel()
        await asyncio.wait([task])


def _close_runner(runner: asyncio.Runner) -> None:
    """Close a runner, and abandon tasks that ignore their cancellation.

    The runner would wait for them for ever, and all resources of the server are closed already.
    """
    loop = runner.get_loop()
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        _, tasks = loop.run_until_complete(asyncio.wait(tasks, timeout=_CANCEL_SECONDS))
    if not tasks:
        runner.close()
        return
    _log.warning("%d task(s) ignored their cancellation, and are abandoned", len(tasks))
    loop.set_exception_handler(lambda _, context: None)  # silences "destroyed while pending"
    asyncio.set_event_loop(None)
    loop.close()


def _tune_garbage_collector() -> None:
    """Run the garbage collector less often, and ignore the objects of the start.

    The process is the server's own, and a request leaves no cycles: collecting after every 700
    objects took a twentieth of the time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def _set_listener(app: App, host: str, sockets: Iterable[socket.socket]) -> None:
    """Pass the listening addresses to an app, which determine the hosts that it accepts."""
    app.hosts.listens(host, [sock.getsockname()[0] for sock in sockets])


def _encryption(app: ASGIApp, options: TlsOptions | None) -> ReloadingTls | None:
    """Return the TLS of a server. Raises ``ListenError``."""
    if options is None:
        return None
    settings, rules = (app.settings, app.rules) if isinstance(app, App) else (Settings(), ())
    most = min(settings.max_connections, most_connections()) // 4 + 1
    return ReloadingTls(
        options, asked_of_callers(rules), handshakes=Handshakes(most, settings.head_timeout)
    )


def _watching(tls: ReloadingTls | None) -> contextlib.AbstractAsyncContextManager[None]:
    return contextlib.nullcontext() if tls is None else tls.watching()


def _scheme(tls: TlsOptions | None) -> str:
    return "http" if tls is None else "https"


def over_grpc(
    app: App,
    options: GrpcOptions | None,
    host: str,
    address: str,
    grace: float,
    tls: ReloadingTls | None = None,
) -> contextlib.AbstractAsyncContextManager[str]:
    """Serve an app over gRPC too while the context lasts, if there are ``options``.

    ``host`` is the host of HTTP, ``address`` its URL on this machine, ``tls`` its TLS.
    """
    if options is None:
        return contextlib.nullcontext("")
    from parley.server.grpc.server import serving_grpc

    return serving_grpc(app, options, host=host, address=address, grace=grace, tls=tls)


@contextlib.asynccontextmanager
async def serving(
    app: ASGIApp,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    grace: int = 5,
    grpc: GrpcOptions | None = None,
    tls: TlsOptions | None = None,
) -> AsyncIterator[str]:
    """Serve an app on the running event loop while the context lasts. Yields its URL.

    Accepts any ASGI app; ``grpc`` serves an ``App`` over gRPC too, ``tls`` is for both. Installs no
    signal handlers.

    Raises ``ListenError``, and the errors of the app's startup.
    """
    encryption = _encryption(app, tls)
    sockets = listen(host, port)
    address = address_of(host, sockets, _scheme(tls))
    try:
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(_watching(encryption))
            if isinstance(app, App):
                _set_listener(app, host, sockets)
                await stack.enter_async_context(app.lifespan())
                over = over_grpc(app, grpc, host, address, grace, encryption)
                await stack.enter_async_context(over)
            ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            server = server_of(
                app,
                grace=grace,
                kinds=1 if grpc is None else 2,
                signals=False,
                tls=encryption,
                started=lambda: ready.set_result(None),
            )
            task = asyncio.create_task(server.serve(sockets))
            try:
                await asyncio.wait({task, ready}, return_when=asyncio.FIRST_COMPLETED)
                if not ready.done():
                    await task
                    raise ListenError("the server ended before it accepted a request")
                yield address
            finally:
                server.end()
                await task
    finally:
        _close(sockets)


def server_of(
    app: ASGIApp,
    *,
    grace: int,
    kinds: int,
    started: Callable[[], None],
    access_log: bool = False,
    signals: bool = True,
    exits_at_once: bool = True,
    tls: ReloadingTls | None = None,
) -> Http1Server:
    """Return a server that drains the app before the grace period begins.

    ``kinds`` is the number of protocols whose connections share the process's file descriptors.
    ``started`` is called once it accepts requests. The caller starts an ``App`` itself, and gets
    its errors; the server runs the lifespan of any other app.
    """
    ours = app if isinstance(app, App) else None
    settings = ours.settings if ours else Settings()
    request_bytes = ours.request_bytes if ours else ByteReservation(settings)
    unsent_bytes = ours.unsent_bytes if ours else UnsentBytes(settings)
    sockets = SocketServing(
        settings,
        request_bytes=request_bytes,
        unsent_bytes=unsent_bytes,
        unread_timeout=_IDLE_CONNECTION,
        closes=ours is None,
    )
    if access_log:
        log_access()
    serving = HttpServing(
        app,
        max_connections=min(settings.max_connections, most_connections(kinds)),
        address_share=settings.address_share,
        head_timeout=settings.head_timeout,
        body_timeout=settings.body_timeout,
        idle_timeout=_IDLE_CONNECTION,
        request_bytes=request_bytes,
        unsent_bytes=unsent_bytes,
        proxies=KnownProxies() if settings.trust_proxy else None,
        upgrades=Upgrades(sockets, ours.takes_socket if ours else _takes_all),
        logs_access=access_log,
        agents=ours,
    )
    return Http1Server(
        serving,
        grace=grace,
        started=started,
        drain=ours.lifecycle.drain if ours else None,
        lifespan=None if ours else lifespan_of(app, serving.state),
        tls=None if tls is None else tls.context,
        signals=signals,
        exits_at_once=exits_at_once,
    )


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the factory of the event loop: uvloop if it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _takes_all(scope: Scope) -> bool:
    """Return true, so that an app of another framework decides about every WebSocket."""
    return True


def _close(sockets: list[socket.socket]) -> None:
    for sock in sockets:
        sock.close()


# -- exposure ---------------------------------------------------------------------------------


class AnonymousRefused(ListenError):
    """Everyone could call the agents of this server, from other machines too."""


def check_exposure(
    app: App,
    host: str,
    sockets: Iterable[socket.socket],
    grpc: GrpcOptions | None,
    *,
    allow_anonymous: bool,
) -> None:
    """Reject a server that lets everyone on the network call agents, unless that is allowed.

    Raises ``AnonymousRefused``.
    """
    if not app.is_open:
        return
    exposed = [] if all(is_loopback(each.getsockname()[0]) for each in sockets) else [host]
    if grpc is not None and grpc.host is not None and not is_loopback(grpc.host):
        exposed.append(grpc.host)
    if not exposed:
        return
    where = exposed[0] or "all addresses"
    if not allow_anonymous:
        raise AnonymousRefused(
            f"everyone who can reach {where} could call these agents, because they require no "
            "credentials: declare some (Agent(..., security=...)), identify callers (caller=), or "
            "allow it with --allow-anonymous (allow_anonymous=True)"
        )
    _log.warning("everyone who can reach %s can call these agents: callers are anonymous", where)


def warn_of_plain_text(
    app: App,
    host: str,
    sockets: Iterable[socket.socket],
    grpc: GrpcOptions | None,
    tls: ReloadingTls | None,
) -> None:
    """Warn of credentials that would travel unencrypted, and of certificates never asked for."""
    if not any(each is not None and each.securities for each in app.rules):
        return
    is_public = not all(is_loopback(each.getsockname()[0]) for each in sockets)
    if tls is None and is_public and app.url is None and not app.settings.trust_proxy:
        _log.warning(
            "the agents require credentials, and their cards name http:// on %s: callers would "
            "send them unencrypted; give a certificate and its key (tls_cert, tls_key), or the "
            "https:// address of the proxy in front (url)",
            host or "all addresses",
        )
    asks = tls is not None and tls.callers != "none"
    asks_over_grpc = grpc is not None and grpc.client_ca is not None
    for scheme in lacks_certificates(app.rules):
        if not asks and not asks_over_grpc:
            _log.warning(
                "%r needs client certificates, and this server asks for none: name their "
                "authorities (tls_client_ca), or the proxy that verifies them (proxy_header=)",
                scheme,
            )
        elif (
            tls is not None
            and tls.callers == "optional"
            and grpc is not None
            and not asks_over_grpc
        ):
            _log.warning(
                "over gRPC a certificate cannot be optional, so %r cannot be used there; to "
                "require one of all callers, give grpc_cert, grpc_key and grpc_client_ca",
                scheme,
            )
