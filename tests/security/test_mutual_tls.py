"""Mutual TLS: callers' certificates, from the handshake and from proxies."""

from __future__ import annotations

import contextlib
import logging
from base64 import b64encode
from urllib.parse import quote

import pytest

import parley
from parley import Agent, Turn
from parley.client.bindings.http import GrpcTls, HttpTransport
from parley.client.errors import ClientError
from parley.model.errors import PermissionDeniedError, UnauthenticatedError
from parley.model.service import Caller
from parley.security import Bearer, MutualTls
from parley.security.authentication import Authenticator
from parley.security.evidence import Evidence
from parley.security.networks import CONNECTION
from parley.security.schemes.scheme import CredentialsRefused, Proof
from parley.server.app import Settings
from parley.server.run import serving
from parley.server.settings import GrpcOptions, TlsOptions
from tests.kit.certificates import Authority, Pair, trusting

pytestmark = pytest.mark.anyio

AUTHORITY = Authority("Parley test authority")
OTHER = Authority("Another authority")
SHOP = "spiffe://example.org/shop"

shop = AUTHORITY.caller("shop", uris=(SHOP,), dns=("shop.example.org",), organization="Example")
ada = AUTHORITY.caller("ada", organization="Example", key=3)


# -- the scheme --------------------------------------------------------------------------------


def evidence(
    pair: Pair | None = None, *, address="203.0.113.9", headers=(), error=None, connection=None
) -> Evidence:
    extensions = {}
    if pair is not None:
        extensions["tls"] = {"client_cert_chain": [pair.pem], "client_cert_error": error}
    if connection is not None:
        extensions[CONNECTION] = {"client": (connection, 1)}
    raw = [(name.encode(), value.encode()) for name, value in headers]
    return Evidence(
        {"headers": raw, "client": (address, 1), "extensions": extensions, "query_string": b""}
    )


def proof(scheme: MutualTls, shown: Evidence) -> Proof:
    assert scheme.is_presented(shown)
    return scheme.verify(shown)


def refusal(scheme: MutualTls, shown: Evidence) -> CredentialsRefused:
    assert scheme.is_presented(shown)
    with pytest.raises(CredentialsRefused) as refused:
        scheme.verify(shown)
    return refused.value


@pytest.mark.parametrize(
    ("pair", "id"),
    [
        (shop, SHOP),
        (AUTHORITY.caller("shop", dns=("Shop.Example.org", "b.example")), "shop.example.org"),
        (ada, "CN=ada,O=Example"),
        (AUTHORITY.caller("", uris=(SHOP,)), SHOP),
    ],
)
def test_a_caller_is_who_the_certificate_names(pair, id):
    caller = proof(MutualTls(), evidence(pair)).caller
    assert caller.id == caller.client == id
    assert caller.issuer == "CN=Parley test authority"
    assert caller.authenticated
    assert caller.claims["fingerprint"] == pair.fingerprint
    if pair is shop:
        assert caller.claims == {
            "subject": "CN=shop,O=Example",
            "fingerprint": shop.fingerprint,
            "uris": [SHOP],
            "dns": ["shop.example.org"],
        }


@pytest.mark.parametrize("certificate_first", [True, False])
async def test_a_certificate_beside_a_token_is_that_of_the_application_of_a_person(
    certificate_first,
):
    certificate = MutualTls({SHOP: ["pay"]})
    token = Bearer(lambda _: Caller(id="ada", scopes=frozenset({"read"})))
    both = certificate & token if certificate_first else token & certificate
    shown = evidence(shop, headers=[("authorization", "Bearer x")])
    caller = await Authenticator([both])(shown.scope)
    assert (caller.id, caller.client, caller.scopes) == ("ada", SHOP, {"read"})
    assert both.is_met(caller)
    assert (token & certificate.with_scopes("pay")).is_met(caller)
    assert not certificate.with_scopes("pay").is_met(caller)


def test_nothing_is_presented_without_a_certificate():
    assert not MutualTls().is_presented(evidence())


@pytest.mark.parametrize(
    "identity",
    [
        SHOP,
        "shop.example.org",
        "SHOP.example.org",
        "CN=shop,O=Example",
        "CN=shop, O=Example",
        shop.fingerprint,
        f"sha256:{shop.fingerprint.upper()}",
        ":".join(shop.fingerprint[at : at + 2] for at in range(0, 64, 2)),
    ],
    ids=["uri", "dns", "DNS", "subject", "spaced", "hex", "sha256", "colons"],  # keys are new ones
)
def test_an_identity_is_pinned_by_any_of_its_names(identity):
    scheme = MutualTls([identity])
    assert proof(scheme, evidence(shop)).caller.id == SHOP
    assert "not among the identities" in refusal(scheme, evidence(ada)).reason


def test_identities_have_scopes():
    scheme = MutualTls({SHOP: ["pay", "read"], "CN=ada,O=Example": ["read"]})
    assert proof(scheme, evidence(shop)).scopes == {"pay", "read"}
    assert proof(scheme, evidence(ada)).scopes == {"read"}


def test_a_certificate_counts_while_it_is_valid():
    """A connection may outlive its certificate."""
    scheme = MutualTls()
    expired = AUTHORITY.caller("ada", days=(-10, -1))
    early = AUTHORITY.caller("ada", days=(1, 10))
    assert "expired" in refusal(scheme, evidence(expired)).description
    assert "not valid yet" in refusal(scheme, evidence(early)).description


def test_a_certificate_that_the_handshake_did_not_verify_is_refused():
    refusal(MutualTls(), evidence(ada, error="self-signed certificate"))


def test_a_certificate_that_names_nobody_is_refused():
    assert "has no identity" in refusal(MutualTls(), evidence(AUTHORITY.caller())).description


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((["not a name"],), "names no certificate"),
        ((["CN"],), None),
        ((["CN=a,,b"],), "names no certificate"),
        ((["sha256:12"],), "names no certificate"),
        (([""],), "names no certificate"),
        (([7],), "an identity is text"),
        (({SHOP: "pay"},), "are a list"),
    ],
)
def test_identities_that_name_nobody_are_refused(arguments, words):
    if words is None:
        MutualTls(*arguments)
        return
    with pytest.raises(ValueError, match=words):
        MutualTls(*arguments)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"proxy_header": "X-Client"}, "reads X-Forwarded-Client-Cert or Client-Cert"),
        ({"proxy_header": "Client-Cert"}, "name the trusted proxies"),
        ({"trusted_proxies": ["10.0.0.0/8"]}, "give proxy_header"),
        ({"proxy_header": "Client-Cert", "trusted_proxies": "10.0.0.0/8"}, "takes a list"),
        ({"proxy_header": "Client-Cert", "trusted_proxies": ["10.0.0.1/8"]}, "networks such as"),
        ({"proxy_header": "Client-Cert", "trusted_proxies": ["proxy"]}, "networks such as"),
    ],
)
def test_proxies_are_named_by_their_networks(options, words):
    with pytest.raises(ValueError, match=words):
        MutualTls(**options)


# -- through a proxy ---------------------------------------------------------------------------

XFCC = "x-forwarded-client-cert"


def behind(header="X-Forwarded-Client-Cert", identities=()) -> MutualTls:
    return MutualTls(identities, proxy_header=header, trusted_proxies=["10.0.0.0/8", "::1"])


def client_cert(pair: Pair) -> tuple[str, str]:
    return "client-cert", f":{b64encode(pair.der).decode()}:"


def xfcc(pair: Pair) -> tuple[str, str]:
    return XFCC, f'Hash={pair.fingerprint};Cert="{quote(pair.pem)}";Subject="CN=liar"'


@pytest.mark.parametrize("address", ["10.1.2.3", "::ffff:10.1.2.3", "::1"])
@pytest.mark.parametrize(
    ("scheme", "header"), [(behind(), xfcc(shop)), (behind("client-cert"), client_cert(shop))]
)
def test_a_trusted_proxy_passes_a_certificate_on(scheme, header, address):
    caller = proof(scheme, evidence(address=address, headers=[header])).caller
    assert (caller.id, caller.issuer) == (SHOP, "CN=Parley test authority")


@pytest.mark.parametrize("address", ["203.0.113.9", "127.0.0.1", "11.0.0.1", "", "proxy"])
@pytest.mark.parametrize(
    ("scheme", "header"), [(behind(), xfcc(shop)), (behind("Client-Cert"), client_cert(shop))]
)
def test_the_header_of_anyone_else_is_refused_and_logged(scheme, header, address, caplog):
    with caplog.at_level(logging.WARNING, "parley.security"):
        refused = refusal(scheme, evidence(ada, address=address, headers=[header]))
    assert "not a trusted proxy" in refused.reason
    assert "is not a trusted proxy" in caplog.text


def test_the_address_is_that_of_the_connection_whatever_proxy_headers_say():
    scheme = behind()
    inside = evidence(address="10.1.2.3", connection="203.0.113.9", headers=[xfcc(shop)])
    refusal(scheme, inside)
    outside = evidence(address="203.0.113.9", connection="10.1.2.3", headers=[xfcc(shop)])
    proof(scheme, outside)


def test_the_certificate_of_the_proxy_itself_is_not_the_callers():
    scheme = behind()
    assert not scheme.is_presented(evidence(shop, address="10.1.2.3"))
    found = proof(scheme, evidence(shop, address="10.1.2.3", headers=[xfcc(ada)]))
    assert found.caller.id == "CN=ada,O=Example"
    assert proof(scheme, evidence(ada)).caller.id == "CN=ada,O=Example"


@pytest.mark.parametrize(
    ("value", "id"),
    [
        (f'By=spiffe://m/a;Hash={"ab" * 32};Subject="CN=x,O=Y";URI={SHOP}', SHOP),
        ('Hash=;Subject="CN=x,O=Y";URI=;DNS=a.example;DNS=b.example', "a.example"),
        ('Subject="CN=x\\\\, y,O=Y"', "CN=x\\, y,O=Y"),
        (f'URI=spiffe://evil/x;Subject="CN=a,O=\\"b\\";c",URI={SHOP}', SHOP),
        (f"URI=spiffe://evil/x, URI={SHOP}", SHOP),
    ],
)
def test_the_last_element_of_the_header_names_the_caller(value, id):
    """The nearest proxy wrote it; any caller may have written the elements before it."""
    caller = proof(behind(), evidence(address="10.1.2.3", headers=[(XFCC, value)])).caller
    assert (caller.id, caller.issuer) == (id, "mtls")


def test_several_headers_are_one_list():
    headers = [(XFCC, "URI=spiffe://evil/x"), (XFCC, f"URI={SHOP}")]
    assert proof(behind(), evidence(address="10.0.0.1", headers=headers)).caller.id == SHOP


@pytest.mark.parametrize(
    "value",
    [
        "",
        "garbage",
        "URI",
        'Subject="CN=x',
        'Subject="CN=x"garbage',
        "Hash=12;URI=spiffe://a/b",
        "Subject=CN",
        f"Hash={'ab' * 32};Hash={'cd' * 32}",
        'Cert="-----BEGIN"',
        f'Hash={"ab" * 32};Cert="{quote(shop.pem)}"',
        f"URI={SHOP},",
        "URI=" + "x" * 40_000,
        "URI=javascript",
    ],
)
def test_a_malformed_header_of_a_trusted_proxy_is_refused(value):
    refusal(behind(), evidence(address="10.1.2.3", headers=[(XFCC, value)]))


@pytest.mark.parametrize(
    "values",
    [[""], [":"], ["::"], [":AAAA:"], [client_cert(shop)[1]] * 2, [quote(shop.pem)], [":A:"]],
)
def test_a_malformed_client_cert_is_refused(values):
    headers = [("client-cert", value) for value in values]
    refusal(behind("Client-Cert"), evidence(address="10.1.2.3", headers=headers))


def test_a_proxy_passes_expired_certificates_on_in_vain():
    expired = AUTHORITY.caller("ada", days=(-10, -1))
    refusal(behind("Client-Cert"), evidence(address="10.0.0.1", headers=[client_cert(expired)]))


def test_pins_count_for_certificates_from_proxies_too():
    scheme = behind(identities=[SHOP])
    proof(scheme, evidence(address="10.0.0.1", headers=[xfcc(shop)]))
    refusal(scheme, evidence(address="10.0.0.1", headers=[xfcc(ada)]))


# -- over the network --------------------------------------------------------------------------

certificate = MutualTls({SHOP: ["pay"], "CN=ada,O=Example": []})
bank = Agent("Bank", security=certificate)
bearer = Bearer({"token": Caller(id="bob")}.get)
either = Agent("Either", security=MutualTls() | bearer)


@bank.skill(replies="task")
async def whoami(turn: Turn) -> str:
    return turn.caller.id


@bank.skill(security=certificate.with_scopes("pay"))
async def pay(turn: Turn) -> str:
    return "paid"


@either.skill
async def who(turn: Turn) -> str:
    return turn.caller.id


@contextlib.asynccontextmanager
async def served(agent, folder, **options):
    cert, key = AUTHORITY.server().write(folder, "server")
    tls = TlsOptions(cert=cert, key=key, client_ca=AUTHORITY.write(folder))
    async with serving(parley.asgi(agent, **options), tls=tls, grpc=GrpcOptions(port=0)) as url:
        yield url


@contextlib.asynccontextmanager
async def calling(url, folder, pair: Pair | None, binding="JSONRPC", **options):
    own = None if pair is None else pair.write(folder, "own")
    files = {} if own is None else {"cert": own[0], "key": own[1]}
    transport = HttpTransport(
        tls=trusting(AUTHORITY, own), grpc_tls=GrpcTls(ca=AUTHORITY.write(folder), **files)
    )
    async with (
        transport,
        parley.connect(url, http=transport, binding=binding, retries=0, **options) as remote,
    ):
        yield remote


def grpc_origins(remote) -> list[str]:
    scheme = remote.interface.url.partition("://")[0]
    offered = remote.card.supported_interfaces
    return [f"{scheme}://{each.url}" for each in offered if each.protocol_binding == "GRPC"]


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON", "GRPC"])
async def test_a_certificate_lets_its_caller_in(tmp_path, binding):
    async with served(bank, tmp_path) as url:
        async with calling(url, tmp_path, shop, binding) as remote:
            [needs] = remote.card.security_requirements
            assert list(needs.schemes) == ["mtls"]
            assert (await remote.send("who am I?")).text == SHOP
            assert (await remote.send("now", metadata={"skill": "pay"})).text == "paid"
        async with calling(url, tmp_path, ada, binding) as remote:
            assert (await remote.send("who am I?")).text == "CN=ada,O=Example"
            with pytest.raises(PermissionDeniedError, match="scope pay"):
                await remote.send("now", metadata={"skill": "pay"})


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON", "GRPC"])
async def test_a_certificate_that_is_not_pinned_is_refused(tmp_path, binding, caplog):
    mallory = AUTHORITY.caller("mallory")
    with caplog.at_level(logging.INFO, "parley.security"):
        async with (
            served(bank, tmp_path) as url,
            calling(url, tmp_path, mallory, binding) as remote,
        ):
            with pytest.raises(UnauthenticatedError, match="not accepted here"):
                await remote.send("who am I?")
    assert "'CN=mallory', which is not among the identities" in caplog.text


@pytest.mark.parametrize(
    "pair",
    [
        None,
        OTHER.caller("shop", uris=(SHOP,)),
        OTHER.own,
        AUTHORITY.caller("shop", uris=(SHOP,), days=(-10, -1)),
    ],
    ids=["none", "wrong authority", "self-signed", "expired"],
)
@pytest.mark.parametrize("binding", ["JSONRPC", "GRPC"])
async def test_the_handshake_lets_nobody_in_without_a_valid_certificate(
    tmp_path, pair, binding, caplog
):
    async with served(bank, tmp_path) as url:
        card = None
        async with calling(url, tmp_path, shop) as remote:
            card = remote.card
        caplog.set_level(logging.INFO, "parley.server")
        with pytest.raises((ClientError, UnauthenticatedError)):
            async with calling(card, tmp_path, pair, binding) as remote:
                await remote.send("who am I?")
        assert binding == "GRPC" or "a TLS handshake failed: " in caplog.text


async def test_a_certificate_is_optional_where_other_credentials_do(tmp_path):
    async with served(either, tmp_path) as url:
        async with calling(url, tmp_path, ada) as remote:
            assert (await remote.send("who am I?")).text == "CN=ada,O=Example"
        async with calling(url, tmp_path, None, bearer="token") as remote:
            assert (await remote.send("who am I?")).text == "bob"
            over_grpc = grpc_origins(remote)
        async with calling(
            url, tmp_path, None, "GRPC", bearer="token", trust_origins=over_grpc
        ) as remote:
            assert (await remote.send("who am I?")).text == "bob"
        async with calling(url, tmp_path, None) as remote:
            with pytest.raises(UnauthenticatedError):
                await remote.send("who am I?")
        with pytest.raises(ClientError):
            async with calling(url, tmp_path, OTHER.caller("ada")) as remote:
                await remote.send("who am I?")


async def test_a_spoofed_header_is_refused_over_the_network():
    agent = Agent(
        "Behind",
        security=MutualTls(
            proxy_header="Client-Cert", trusted_proxies=["10.0.0.0/8"], name="forwarded"
        ),
    )
    agent.skill(whoami)
    name, value = client_cert(shop)
    spoofed = {name: value, "X-Forwarded-For": "10.0.0.1", "Forwarded": "for=10.0.0.1"}
    for settings in (Settings(), Settings(trust_proxy=True)):
        app = parley.asgi(agent, settings=settings)
        async with (
            serving(app, grpc=GrpcOptions(port=0)) as url,
            parley.connect(url, headers=spoofed, retries=0) as remote,
        ):
            with pytest.raises(UnauthenticatedError, match="not accepted from here"):
                await remote.send("who am I?")


async def test_a_header_of_a_trusted_proxy_counts_over_the_network():
    agent = Agent(
        "Behind", security=MutualTls(proxy_header="Client-Cert", trusted_proxies=["127.0.0.0/8"])
    )
    agent.skill(whoami)
    headers = dict([client_cert(shop)]) | {"X-Forwarded-For": "203.0.113.9"}
    for settings in (Settings(), Settings(trust_proxy=True)):
        app = parley.asgi(agent, settings=settings)
        async with serving(app, grpc=GrpcOptions(port=0)) as url:
            async with parley.connect(url, headers=headers) as remote:
                assert (await remote.send("who am I?")).text == SHOP
                trusted = grpc_origins(remote)
            options = {"headers": headers, "binding": "GRPC", "trust_origins": trusted}
            async with parley.connect(url, **options) as remote:
                assert (await remote.send("who am I?")).text == SHOP
