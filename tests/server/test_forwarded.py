"""Forwarded headers, which any client can send: trusted only when configured."""

import contextlib
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from parley.model.service import Caller
from parley.server.app import Settings
from parley.server.run import serving
from tests.kit.http import WAIT, ask, call, post
from tests.kit.scripted import app_of

pytestmark = pytest.mark.anyio

CARD = "/.well-known/agent-card.json"
CLAIMS = [
    {"X-Forwarded-Proto": "https"},
    {"X-Forwarded-Proto": "https", "X-Forwarded-Host": "evil.example"},
    {"X-Forwarded-Proto": "https", "X-Forwarded-Prefix": "/evil"},
    {"X-Forwarded-Proto": " https "},
    {"Forwarded": "for=10.0.0.9;host=evil.example;proto=https"},
    {"X-Forwarded-Ssl": "on", "X-Forwarded-For": "10.0.0.9"},
]

APPLICATION = textwrap.dedent(
    """
    import sys
    sys.path.insert(0, {root!r})
    from starlette.applications import Starlette
    from starlette.routing import Mount
    from parley.server.app import Settings
    from tests.kit.scripted import app_of

    app = app_of(settings=Settings(trust_proxy={trust}))
    outer = Starlette(routes=[Mount("/agents", app=app)], lifespan=app.lifespan)
    """
)


async def seen_by(settings, headers):
    """The scheme and the client of a request, as the function sees them that says who calls."""
    seen = []

    def identify(scope):
        seen.append((scope["scheme"], scope["client"][0]))
        return Caller(id="ada", authenticated=True)

    async with serving(app_of(settings=settings, identify=identify)) as url:
        assert "result" in (await post(url, call(), headers)).json
    return seen[0]


def url_of(response):
    return response.json["supportedInterfaces"][0]["url"]


@contextlib.contextmanager
def uvicorn(folder: Path, target: str, *options: str, trust: bool = False):
    """Run uvicorn in its own process, with an app of this package."""
    root = str(Path(__file__).parents[2])
    (folder / "application.py").write_text(APPLICATION.format(root=root, trust=trust))
    process = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", f"application:{target}", "--port", "0", *options],
        cwd=folder,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    try:
        said = ""
        while "Uvicorn running on" not in said:
            line = process.stderr.readline()
            assert line, said
            said += line
        yield re.search(r"running on (http://\S+)", said)[1]
    finally:
        process.terminate()
        process.communicate(timeout=WAIT)


@pytest.mark.slow
async def test_what_uvicorn_believes_of_a_peer_on_this_machine_is_on_no_card(tmp_path):
    with uvicorn(tmp_path, "app") as url:
        assert url_of(await ask(url, "GET", CARD)) == url
        for claims in CLAIMS:
            assert url_of(await ask(url, "GET", CARD, headers=claims)) == url, claims
        extended = await post(url, call("GetExtendedAgentCard"), CLAIMS[0])
        assert "https" not in extended.body.decode()
        # Under uvicorn too, a server on this machine accepts only its own names.
        for path in (CARD, "/", "/tasks/t-1", "/health/live", "/nowhere"):
            refused = await ask(url, "GET", path, headers={"Host": "evil.example"})
            assert refused.status == 421
            assert b"allowed_hosts" in refused.body


@pytest.mark.slow
async def test_a_mounted_app_believes_no_more_under_uvicorn(tmp_path):
    with uvicorn(tmp_path, "outer") as url:
        for claims in ({}, *CLAIMS):
            card = await ask(url, "GET", f"/agents{CARD}", headers=claims)
            assert url_of(card) == f"{url}/agents/", claims
        refused = await ask(url, "GET", f"/agents{CARD}", headers={"Host": "evil.example"})
        assert refused.status == 421


@pytest.mark.parametrize(
    ("scope", "headers", "scheme"),
    [
        ({}, {}, "http"),
        ({"scheme": "https"}, {}, "https"),
        ({"scheme": "https"}, {"X-Forwarded-For": "10.0.0.9"}, "https"),
        ({"scheme": "https"}, {"X-Forwarded-Proto": "https"}, "http"),
        ({"scheme": "https"}, {"Forwarded": "proto=https"}, "http"),
        ({"scheme": "https", "extensions": {}}, {"X-Forwarded-Ssl": "on"}, "http"),
        ({"scheme": "https", "extensions": {"tls": {}}}, {"X-Forwarded-Proto": "https"}, "https"),
        ({"scheme": "http", "extensions": None}, {"X-Forwarded-Proto": "https"}, "http"),
    ],
)
async def test_a_scheme_is_believed_that_no_header_can_have_made(scope, headers, scheme):
    app = app_of()

    async def before(inner, receive, send):
        await app({**inner, **scope} if inner["type"] == "http" else inner, receive, send)

    async with serving(before) as url:
        card = await ask(url, "GET", CARD, headers=headers)
        assert url_of(card) == url.replace("http", scheme, 1)


async def test_a_trusted_proxy_is_believed_under_uvicorn(tmp_path):
    with uvicorn(tmp_path, "app", trust=True) as url:
        host = url.removeprefix("http://")
        card = await ask(url, "GET", CARD, headers={"X-Forwarded-Proto": "https"})
        assert url_of(card) == f"https://{host}"
        public = {"X-Forwarded-Proto": "https", "X-Forwarded-Host": "public.example"}
        card = await ask(url, "GET", CARD, headers={**public, "Host": "public.example"})
        assert url_of(card) == "https://public.example"


async def test_who_calls_is_who_is_connected_unless_a_proxy_is_trusted(monkeypatch):
    claims = {"X-Forwarded-For": "10.0.0.9", "X-Forwarded-Proto": "https"}
    assert await seen_by(Settings(), claims) == ("http", "127.0.0.1")
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    assert await seen_by(Settings(), claims) == ("http", "127.0.0.1")
    monkeypatch.delenv("FORWARDED_ALLOW_IPS")
    assert await seen_by(Settings(trust_proxy=True), claims) == ("https", "10.0.0.9")
