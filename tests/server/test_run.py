"""Running a server: settings, addresses, signals, and startup errors."""

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from parley.server.app import Settings
from parley.server.run import ListenError, run, server_of, serving
from parley.server.sockets import address_of, listen
from tests.kit.http import PARAMS, WAIT, call, connection
from tests.kit.scripted import Scripted, app_of
from tests.kit.waiting import let_time_pass

pytestmark = pytest.mark.anyio


on_posix = pytest.mark.skipif(os.name != "posix", reason="processes get signals differently there")

SERVER = textwrap.dedent(
    """
    import asyncio, logging, sys
    sys.path.insert(0, {root!r})
    logging.basicConfig()
    from parley.model.service import StreamItem
    from parley.server.run import run
    from tests.kit.scripted import Scripted, Standstill, app_of, task

    async def forever(request, context):
        print("asked", flush=True)
        await asyncio.get_running_loop().create_future()

    async def shutdown():
        print("stopped", flush=True)

    service = Scripted(
        send_message=forever, subscribe_to_task=Standstill(StreamItem(task(), 1))
    )
    run(
        app_of(service, shutdown=shutdown),
        port=0,
        grace=60,
        on_listening=lambda url: print(url, flush=True),
    )
    print("returned", flush=True)
    """
).format(root=str(Path(__file__).parents[2]))


class Process:
    """A server in its own process."""

    def __init__(self, script=SERVER):
        self._process = subprocess.Popen(
            [sys.executable, "-c", script],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self):
        self.url = self._process.stdout.readline().strip()
        return self

    def __exit__(self, *exception):
        self._process.kill()
        self._process.wait(WAIT)
        self._process.stdout.close()
        self._process.stderr.close()

    async def line(self):
        return (await asyncio.to_thread(self._process.stdout.readline)).strip()

    def signal(self, number):
        self._process.send_signal(number)

    async def end(self):
        """Return the exit status and the output."""
        out, err = await asyncio.to_thread(self._process.communicate, timeout=WAIT)
        return self._process.returncode, out.split(), err


@pytest.mark.slow
@on_posix
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_streams_cleanly_and_stops_the_server(number):
    with Process() as server:
        assert server.url.startswith("http://127.0.0.1:")
        async with connection(server.url) as http:
            await http.subscribe()
            frames = http.frames()
            await anext(frames)
            server.signal(number)
            assert [frame async for frame in frames] == []
        assert await server.end() == (0, ["stopped", "returned"], "")


@pytest.mark.slow
@on_posix
async def test_after_a_signal_an_idle_connection_has_one_more_request():
    with Process() as server:
        async with connection(server.url) as used, connection(server.url) as idle:
            for http in (used, idle):
                await http.request("GET", "/health/live")
                assert (await http.response()).status == 200
            server.signal(signal.SIGTERM)
            is_last = False
            while not is_last:
                await used.request("GET", "/health/live")
                answer = await used.response()
                assert answer.status == 200
                is_last = answer.headers.get("connection") == "close"
            assert await server.end() == (0, ["stopped", "returned"], "")


@pytest.mark.slow
@on_posix
async def test_a_second_signal_does_not_wait_for_what_is_under_way():
    with Process() as server:
        async with connection(server.url) as http:
            await http.request("POST", "/", call(), {"Content-Type": "application/json"})
            answer = await http.response()
            assert answer.error["code"] == -32009  # nothing is in progress yet
            await http.request(
                "POST", "/", call(), {"Content-Type": "application/json", "A2A-Version": "1.0"}
            )
            assert await server.line() == "asked"
            server.signal(signal.SIGINT)
            # After the first signal, the server accepts no connections.
            async with asyncio.timeout(WAIT):
                while await can_connect(server.url):
                    await let_time_pass(0.01)
            server.signal(signal.SIGINT)
            status, out, err = await server.end()
    assert (status, out) == (0, ["returned"])
    assert "Traceback" not in err


async def can_connect(url):
    try:
        async with connection(url):
            return True
    except OSError:
        return False


def test_a_port_in_use_is_told_in_one_line():
    (taken,) = listen("127.0.0.1", 0)
    port = taken.getsockname()[1]
    try:
        with pytest.raises(ListenError, match=f"port {port} on 127.0.0.1 is in use") as raised:
            run(app_of(), port=port)
        assert "\n" not in str(raised.value)
    finally:
        taken.close()


@pytest.mark.parametrize(
    ("host", "port", "words"),
    [
        ("127.0.0.1", 65536, "65536 is no port"),
        ("127.0.0.1", -1, "-1 is no port"),
        ("no such host.invalid", 0, "not a name or an address"),
        ("192.0.2.1", 0, "not an address of this machine"),
    ],
)
def test_where_a_server_cannot_listen_is_told_in_one_line(host, port, words):
    with pytest.raises(ListenError, match=words):
        listen(host, port)


@pytest.mark.parametrize(
    ("host", "name"), [("127.0.0.1", "127.0.0.1"), ("", "127.0.0.1"), ("localhost", "localhost")]
)
def test_the_address_of_a_free_port_is_the_real_one(host, name):
    sockets = listen(host, 0)
    try:
        ports = {sock.getsockname()[1] for sock in sockets}
        assert len(ports) == 1
        assert address_of(host, sockets) == f"http://{name}:{ports.pop()}"
    finally:
        for sock in sockets:
            sock.close()


def test_a_startup_that_fails_is_raised_and_lets_go_of_the_port():
    async def startup():
        raise RuntimeError("the database is locked")

    (probe,) = listen("127.0.0.1", 0)
    port = probe.getsockname()[1]
    probe.close()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="locked"):
            run(app_of(startup=startup), port=port)


def run_briefly(app, **options):
    """Run a server in a thread, without signal handlers, until it listens."""
    failures = []

    class Enough(Exception):
        pass

    def listening(url):
        raise Enough

    def work():
        try:
            run(app, port=0, on_listening=listening, **options)
        except Enough:
            pass
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(WAIT)
    assert not thread.is_alive()
    assert failures == []


def test_a_server_that_everyone_reaches_and_may_call_is_allowed_to_and_says_so(caplog):
    def said():  # a server of another test may report this one as blocking its loop
        return [each for each in caplog.records if each.name.startswith("parley.server")]

    with caplog.at_level(logging.WARNING, "parley.server"):
        run_briefly(app_of(), host="127.0.0.1")
        assert not said()
        run_briefly(app_of(identify=lambda scope: None), host="0.0.0.0")
        assert not said()
        run_briefly(app_of(), host="0.0.0.0", allow_anonymous=True)
    assert "0.0.0.0" in caplog.text
    assert "callers are anonymous" in caplog.text


async def test_an_error_in_the_context_comes_out_as_it_is():
    with pytest.raises(ZeroDivisionError):
        async with serving(app_of()):
            raise ZeroDivisionError


# -- settings are validated at construction --------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_body_bytes", 0),
        ("max_body_bytes", "10MB"),
        ("max_body_bytes", True),
        ("max_body_bytes_held", 1024),
        ("max_body_bytes_held", None),
        ("address_share", 0),
        ("address_share", 1.5),
        ("max_unsent_bytes", 0),
        ("max_depth", 1),
        ("max_parts", 0),
        ("keep_alive", 0),
        ("keep_alive", -1),
        ("keep_alive", "15"),
        ("keep_alive", float("nan")),
        ("keep_alive", float("inf")),
        ("send_buffer", 10),
        ("head_timeout", 0),
        ("body_timeout", "1"),
        ("max_connections", 0),
        ("max_file_bytes", 0),
        ("max_file_bytes", 65 * 1024**3),
        ("inline_file_bytes", -1),
        ("max_file_transfers", 0),
        ("max_uploads", 0),
        ("max_upload_bytes", 1024),
        ("upload_timeout", 0),
        ("upload_timeout", 31 * 24 * 3600),
        ("file_link_timeout", "1d"),
        ("max_streams", 0),
        ("max_sockets", -1),
        ("max_sockets_per_address", 0),
        ("max_sockets_per_caller", 1.5),
        ("max_socket_message_bytes", -1),
        ("max_socket_message_bytes", 257 * 1024 * 1024),
        ("socket_ping_interval", 0),
        ("socket_ping_timeout", "1s"),
        ("card_max_age", -1),
        ("card_max_age", 1.5),
        ("missing_version", "2.0"),
        ("missing_version", None),
        ("card", "2.0"),
        ("card", None),
        ("docs", "no"),
        ("trust_proxy", "yes"),
        ("cors_origins", "https://a.example"),
        ("cors_origins", ["https://a.example"]),
        ("cors_origins", ("a.example",)),
        ("cors_origins", ("https://a.example/",)),
        ("cors_origins", (7,)),
        ("allowed_hosts", "a.example"),
        ("allowed_hosts", ["a.example"]),
        ("allowed_hosts", ("",)),
        ("allowed_hosts", ("https://a.example",)),
        ("allowed_hosts", ("a.example/",)),
        ("allowed_hosts", ("a.example:",)),
        ("allowed_hosts", ("a.example:99999",)),
        ("allowed_hosts", ("a b",)),
        ("allowed_hosts", ("ä.example",)),
        ("allowed_hosts", ("::1",)),
        ("allowed_hosts", ("[::1",)),
        ("allowed_hosts", ("*.",)),
        ("allowed_hosts", ("**",)),
        ("allowed_hosts", ("*example.com",)),
        ("allowed_hosts", ("a.*.example",)),
        ("allowed_hosts", ("*.*.example",)),
        ("allowed_hosts", ("*:80",)),
        ("allowed_hosts", (".",)),
        ("allowed_hosts", ("a..example",)),
        ("allowed_hosts", ("*..example",)),
        ("allowed_hosts", ("*.[::1]",)),
        ("allowed_hosts", (7,)),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_by_its_name(name, value):
    with pytest.raises(ValueError, match=f"the setting {name} takes "):
        Settings(**{name: value})


def test_settings_that_make_sense_are_kept():
    settings = Settings(
        max_body_bytes=1024,
        keep_alive=0.5,
        cors_origins=("*", "https://a.example:8443"),
        missing_version="1.0",
        allowed_hosts=("a.example", "*.a.example:80", "A:1", "[::1]:9", "10.0.0.1", "x_y", "*"),
        card_max_age=0,
    )
    assert settings.keep_alive == 0.5
    assert settings.max_parts == 1000


@pytest.mark.parametrize("is_new", [False, True], ids=["used again", "new connection"])
async def test_a_request_that_has_arrived_when_the_server_ends_is_answered(is_new: bool) -> None:
    app, ready, loop = app_of(Scripted()), asyncio.Event(), asyncio.get_running_loop()
    [listening] = listen("127.0.0.1", 0)
    port = listening.getsockname()[1]
    server = server_of(app, grace=5, kinds=1, started=ready.set, signals=False)
    body = call("SendMessage", PARAMS["SendMessage"])
    lines = ["POST / HTTP/1.1", f"Host: 127.0.0.1:{port}", "Content-Type: application/json",
             "A2A-Version: 1.0", f"Content-Length: {len(body)}", "", ""]  # fmt: skip
    request = "\r\n".join(lines).encode() + body

    async def answer(client: socket.socket) -> bytes:
        return (await asyncio.wait_for(loop.sock_recv(client, 1 << 16), WAIT)).split(b"\r\n")[0]

    async with app.lifespan():
        served = asyncio.create_task(server.serve([listening]))
        await ready.wait()
        with socket.create_connection(("127.0.0.1", port)) as used, socket.socket() as new:
            used.setblocking(False)
            await loop.sock_sendall(used, request)
            assert await answer(used) == b"HTTP/1.1 200 OK"
            if is_new:
                new.connect(("127.0.0.1", port))
            client = new if is_new else used
            client.send(request)
            client.setblocking(False)
            server.end()
            assert await answer(client) == b"HTTP/1.1 200 OK"
        await served
