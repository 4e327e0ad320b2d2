"""``parley serve``: HTTPS, and the callers that are allowed."""

import json
import os
import re
import signal
import urllib.error
import urllib.request

import pytest

from tests.kit.certificates import Authority, trusting
from tests.kit.processes import Running

posix = pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")

AUTHORITY = Authority()
AGENT = """
from parley import Agent
from parley.model.service import Caller
from parley.security import Bearer, MutualTls

token = Bearer({"good": Caller(id="ada")}.get)
agent = Agent("Open")
bank = Agent("Bank", security=token)

vault = Agent("Vault", security=MutualTls(["CN=ada"]))


@agent.skill
@bank.skill
@vault.skill
async def echo(text: str) -> str:
    return text
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "agents.py").write_text(AGENT)
    AUTHORITY.server().write(tmp_path, "tls")
    return tmp_path


def begin(*more):
    return ["serve", *more, "--port", "0", "--store", "memory:"]


def get(url, *, headers=None, context=None):
    request = urllib.request.Request(url, headers=headers or {})
    try:
        with urllib.request.urlopen(request, context=context, timeout=15) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def address_in(text: str) -> str:
    return re.search(r"address +(\S+)", text)[1]


@pytest.mark.slow
@posix
def test_callers_are_known_by_their_certificates(folder):
    ada = AUTHORITY.caller("ada").write(folder, "ada")
    bob = AUTHORITY.caller("bob").write(folder, "bob")
    mallory = Authority("Another authority").caller("ada").write(folder, "mallory")
    AUTHORITY.write(folder)
    flags = ["--tls-cert", "tls.pem", "--tls-key", "tls.key", "--tls-client-ca", "ca.pem"]
    with Running(begin("agents.py:vault", *flags), folder) as server:
        url = address_in(server.until("Ctrl-C stops the server"))

        def ask(own):
            headers = {"A2A-Version": "1.0"}
            return get(f"{url}/tasks", headers=headers, context=trusting(AUTHORITY, own))

        assert ask(ada)[0] == 200
        assert ask(bob)[0] == 401
        for own in (mallory, None):
            with pytest.raises((urllib.error.URLError, OSError)):
                ask(own)
        assert ask(ada)[0] == 200
        assert server.end(signal.SIGTERM) == 0
        assert "Traceback" not in server.stderr


@pytest.mark.parametrize(
    ("flags", "status", "words"),
    [
        (("--tls-cert", "tls.pem"), 2, "give both"),
        (("--tls-client-ca", "tls.pem"), 2, "need TLS"),
        (("--tls-cert", "tls.pem", "--tls-key", "no.key"), 1, "no.key cannot be read"),
        (("--tls-cert", "tls.key", "--tls-key", "tls.pem"), 1, "cannot be used"),
        (("--webhook-key", "tls.key"), 2, "need a certificate: --webhook-cert"),
        (("--webhook-cert", "no.pem"), 2, "the certificate for webhooks no.pem"),
        (("--webhook-cert", "tls.pem", "--webhook-key", "bob.key"), 2, "cannot be used"),
        (("--restrict", "card"), 2, "is not of the form ENDPOINT=WHO"),
        (("--restrict", "figures=authenticated"), 2, "not 'figures'"),
        (("--restrict", "metrics=::1"), 2, "they are off"),
        (("--restrict", "card=somewhere"), 2, "networks such as"),
        (("--restrict", "card=::1", "--restrict", "card=::2"), 2, "given twice"),
        (("--restrict", "card=authenticated"), 2, "something to verify"),
        (("--host", "0.0.0.0"), 2, "--allow-anonymous"),
        (("--grpc-port", "0", "--host", "0.0.0.0"), 2, "--allow-anonymous"),
    ],
)
def test_what_makes_no_sense_is_said_in_a_line(folder, parley, flags, status, words):
    ran = parley(*begin("agents.py:agent"), *flags)
    assert ran.status == status
    assert words in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.slow
@posix
@pytest.mark.parametrize(
    ("target", "flags", "environment", "is_warned"),
    [
        ("agents.py:agent", ("--allow-anonymous",), {}, True),
        ("agents.py:agent", (), {"PARLEY_ALLOW_ANONYMOUS": "1"}, True),
        ("agents.py:bank", (), {}, False),
    ],
)
def test_everyone_may_call_where_that_is_allowed(folder, target, flags, environment, is_warned):
    words = begin(target, "--host", "0.0.0.0", *flags)
    with Running(words, folder, **environment) as server:
        server.until("Ctrl-C stops the server")
        assert ("callers are anonymous" in server.stderr) == is_warned
        assert ("would send them unencrypted" in server.stderr) == (target == "agents.py:bank")
        assert server.end(signal.SIGTERM) == 0


# -- card validate -----------------------------------------------------------------------------

CARD = {
    "name": "Bank",
    "description": "Keeps money",
    "version": "1.0.0",
    "supportedInterfaces": [
        {"url": "https://bank.example", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"},
        {
            "url": "wss://bank.example/envelope",
            "protocolBinding": "urn:parley:envelope:v1",
            "protocolVersion": "1.0",
        },
    ],
    "capabilities": {},
    "defaultInputModes": ["text/plain"],
    "defaultOutputModes": ["text/plain"],
    "skills": [{"id": "a", "name": "A", "description": "a", "tags": ["a"]}],
}


def test_secrets_and_plain_addresses_in_a_card_are_told(tmp_path, parley):
    card = json.loads(json.dumps(CARD))
    card["description"] = "Use password=hunter2hunter2"
    card["supportedInterfaces"][0]["url"] = "http://bank.example/?token=abcdef"
    card["skills"][0]["tags"] = []
    (tmp_path / "card.json").write_text(json.dumps(card))
    ran = parley("card", "validate", "-a", str(tmp_path / "card.json"), "-o", "json")
    assert (ran.status, ran.error["code"]) == (1, "A2ACLI_ERR_CARD_INVALID")
    told = ran.error["message"]
    assert "description: this looks like a password or key" in told
    assert "supportedInterfaces[0].url: this looks like a credential in the query" in told
    assert "is not encrypted" in told
    assert "use https://" in told
    assert "hunter2" not in ran.stdout + ran.stderr
    assert "abcdef" not in ran.stdout + ran.stderr
