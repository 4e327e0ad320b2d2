"""Proofs of a webhook's sender, requested and verified over every binding and version."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple

import pytest
from aiohttp import web

import parley
from parley.client.remote_agent import RemoteAgent
from parley.model.errors import InvalidParamsError
from parley.model.operations import AuthenticationInfo
from parley.push.proofs import WebhookCertificate
from parley.security.signing.keys import SigningKeys
from parley.server.run import serving
from parley.server.settings import GrpcOptions
from tests.contract.agents import contract, who
from tests.kit.certificates import Authority
from tests.kit.processes import free_port
from tests.kit.servers import WAYS, grpc_of
from tests.kit.webhooks import Told, Webhook, is_over
from tests.push.proofs.receiving import TokenEndpoint, asking, claims_of, is_signed, token_endpoint
from tests.security.signing.key_sets import key_set

pytestmark = pytest.mark.anyio

KEYS = SigningKeys.parse(key_set())
AUTHORITY = Authority()
SECRETS = ("a-secret-of-thirty-characters!", "another-of-thirty-characters!!")


class Proving(NamedTuple):
    """A server with every proof, and a server without keys and certificate."""

    url: str
    bare: str
    hook: Webhook
    safe: Webhook
    shown: list[Any]
    tokens: TokenEndpoint


@pytest.fixture(scope="module")
async def proving(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Proving]:
    folder = tmp_path_factory.mktemp("proofs")
    cert, key = AUTHORITY.caller("parley").write(folder, "own")
    certificate = WebhookCertificate(cert, key, AUTHORITY.write(folder))
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=AUTHORITY.pem)
    tls.load_cert_chain(*AUTHORITY.server().write(folder, "hook"))
    tls.verify_mode = ssl.CERT_REQUIRED
    hook, safe, shown = Webhook(), Webhook(), list[Any]()

    async def take(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        subject = request.transport.get_extra_info("peercert")["subject"]
        shown.append(dict(each[0] for each in subject)["commonName"])
        return await safe.take(request)

    options: dict[str, Any] = {"caller": who, "drain": 0.0, "allow_private_webhooks": True}
    async with AsyncExitStack() as stack:
        for receiver, handler, context in ((hook, hook.take, None), (safe, take, tls)):
            app = web.Application()
            app.router.add_post("/{path:.*}", handler)
            runner = web.AppRunner(app, shutdown_timeout=0.1)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
            await site.start()
            port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
            receiver.url = f"{'http' if context is None else 'https'}://localhost:{port}"
        tokens = await stack.enter_async_context(token_endpoint())
        port = free_port()
        signing = parley.asgi(
            contract,
            url=f"http://127.0.0.1:{port}",
            signing_keys=KEYS,
            webhook_certificate=certificate,
            **options,
        )
        running = serving(signing, port=port, grpc=GrpcOptions(port=0))
        url = await stack.enter_async_context(running)
        bare = parley.asgi(contract, **options)
        at = await stack.enter_async_context(serving(bare, grpc=GrpcOptions(port=0)))
        yield Proving(url, at, hook, safe, shown, tokens)


@asynccontextmanager
async def calling(url: str, way: tuple[str, str]) -> AsyncIterator[RemoteAgent]:
    binding, version = way
    headers, trusted = {"x-user": "ada"}, await grpc_of(url)
    async with parley.connect(
        url, binding=binding, version=version, headers=headers, trust_origins=trusted, retries=0
    ) as remote:
        yield remote


@pytest.fixture(params=WAYS, ids="-".join)
def way(request: pytest.FixtureRequest) -> tuple[str, str]:
    return request.param


def header(name: str, value: str) -> Callable[[Proving, Told], bool]:
    return lambda proving, told: told.headers.get(name) == value


def is_jwt(proving: Proving, told: Told) -> bool:
    audience = f"{proving.hook.url}{told.path}"
    return bool(claims_of(told, KEYS.published, issuer=proving.url, audience=audience))


def has_token(proving: Proving, told: Told) -> bool:
    return told.headers["authorization"].startswith("Bearer token-")


def has_signatures(proving: Proving, told: Told) -> bool:
    return all(is_signed(told, secret.encode()) for secret in SECRETS)


PROOFS: list[tuple[str, str, Callable[[Proving, Told], bool]]] = [
    ("Bearer", "abc", header("authorization", "Bearer abc")),
    ("Basic", "ada:pw", header("authorization", "Basic YWRhOnB3")),
    ("ApiKey", "X-API-Key: 7f3a", header("x-api-key", "7f3a")),
    ("OAuth2", "", has_token),
    ("HMAC-SHA256", " ".join(SECRETS), has_signatures),
    ("JWT", "", is_jwt),
    ("Bearer", "", is_jwt),
]


async def test_each_proof_is_asked_for_and_given(proving: Proving, way: tuple[str, str]) -> None:
    proving.hook.told.clear()
    async with calling(proving.url, way) as remote:
        task = await remote.send("ask please")
        for number, (scheme, credentials, _) in enumerate(PROOFS):
            given = proving.tokens.credentials() if scheme == "OAuth2" else credentials
            push = asking(f"{proving.hook.url}/{number}", scheme, given, id=f"p-{number}")
            made = await remote.push.create(task.id, push)
            found = await remote.push.get(task.id, f"p-{number}")
            assert made.authentication == found.authentication == AuthenticationInfo(scheme=scheme)
        await remote.send("done", task=task)
        paths = {f"/{number}" for number in range(len(PROOFS))}
        await proving.hook.until(
            lambda told: paths <= {each.path for each in told if is_over(each)}
        )
    for told in proving.hook.told:
        assert PROOFS[int(told.path[1:])][2](proving, told), told.path
        assert told.headers["a2a-version"] == way[1]
        assert told.headers["webhook-id"].startswith(f"{task.id}/p-{told.path[1:]}/")
        assert told.headers["webhook-timestamp"].isdecimal()


async def test_the_servers_certificate_is_asked_for_and_shown(
    proving: Proving, way: tuple[str, str]
) -> None:
    proving.shown.clear()
    proving.safe.told.clear()
    async with calling(proving.url, way) as remote:
        task = await remote.send("ask please", push=asking(proving.safe.url, "MutualTLS"))
        await remote.send("done", task=task)
        await proving.safe.until_over()
    assert proving.shown == ["parley"] * len(proving.safe.told)


@pytest.mark.parametrize("scheme", ["JWT", "MutualTLS"])
async def test_a_proof_that_a_server_lacks_is_refused(
    proving: Proving, way: tuple[str, str], scheme: str
) -> None:
    push = asking("https://hooks.example.com/a2a", scheme)
    async with calling(proving.bare, way) as remote:
        task = await remote.send("ask please")
        with pytest.raises(InvalidParamsError, match="a scheme that this server can prove"):
            await remote.push.create(task.id, push)
        with pytest.raises(InvalidParamsError, match="a scheme that this server can prove"):
            await remote.send("ask please", push=push)


async def test_what_is_wrong_is_named_without_the_secret(
    proving: Proving, way: tuple[str, str]
) -> None:
    push = asking("https://hooks.example.com/a2a", "HMAC-SHA256", "hunter2")
    async with calling(proving.url, way) as remote:
        with pytest.raises(InvalidParamsError) as refused:
            await remote.send("ask please", push=push)
    assert "authentication.credentials" in refused.value.message
    assert "hunter2" not in refused.value.message
