"""``parley auth``: after one login, all later commands have the credentials."""

from __future__ import annotations

import io
import json
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from parley.client.auth.storage import FOLDER, PASSPHRASE, STORAGE, LoginStorage
from parley.testing import Issuer
from tests.cli.scripted import Answer, task

OPENID = "/.well-known/openid-configuration"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    """The folder of stored logins."""
    monkeypatch.setenv(STORAGE, "file")
    monkeypatch.setenv(FOLDER, str(tmp_path / "logins"))
    for name in (PASSPHRASE, "PARLEY_CLIENT_SECRET", "PARLEY_TOKEN", "DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(LoginStorage, "_said", False)
    return tmp_path / "logins"


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with Issuer(audience="bank", device_interval=0) as issuer:
        yield issuer


def requiring(agent: Any, scheme: dict[str, Any], *scopes: str) -> None:
    agent.card |= {
        "securitySchemes": {"s": scheme},
        "securityRequirements": [{"schemes": {"s": {"list": list(scopes)}}}],
    }
    agent.says("GetTask", Answer(task()))


def openid(issuer: Issuer) -> dict[str, Any]:
    return {"openIdConnectSecurityScheme": {"openIdConnectUrl": issuer.url + OPENID}}


def sent(parley: Any, agent: Any) -> dict[str, str]:
    ran = parley("task", "get", "task-1", "-a", agent.url)
    assert ran.status == 0, ran.stderr
    return agent.asked[-1].headers


class Approver:
    """A thread that approves each code as soon as the code exists."""

    def __init__(self, issuer: Issuer) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(issuer,))

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(5)

    def _run(self, issuer: Issuer) -> None:
        while not self._over.wait(0.02):
            for code in issuer.user_codes:
                issuer.approve(code, user="grace")


@pytest.mark.slow
def test_a_login_with_a_code_is_kept_and_attached(parley, agent, issuer, folder):
    """A2ACLI_AUTH_005, A2ACLI_AUTH_007, A2ACLI_AUTH_010: OpenID Connect, given the address only."""
    requiring(agent, openid(issuer), "read")
    with Approver(issuer):
        ran = parley("auth", "login", agent.url)
    assert ran.status == 0, ran.stderr
    assert f"open {issuer.url}/" in ran.stderr
    assert "enter the code" in ran.stderr
    assert ran.field("Issuer") == issuer.url
    assert "read" in ran.field("Scopes")
    assert ran.field("Kept in").startswith(str(folder))
    token = sent(parley, agent)["authorization"].removeprefix("Bearer ")
    kept = next(folder.iterdir()).read_text()
    assert token in kept
    for said in (ran, parley("auth", "status"), parley("auth", "status", "-o", "json")):
        assert token not in said.stdout + said.stderr
    shown = parley("auth", "status", "-o", "json").document
    assert [each["origin"] for each in shown["logins"]] == [agent.url]
    assert shown["logins"][0]["renews"] is True
    debugged = parley("task", "get", "task-1", "-a", agent.url, "--debug")
    assert token not in debugged.stdout + debugged.stderr


@pytest.mark.slow
def test_a_client_logs_in_with_its_secret(parley, agent, issuer, monkeypatch, folder):
    """A2ACLI_AUTH_006."""
    requiring(agent, openid(issuer))
    flags = ("--flow", "client-credentials", "--client-id", "service")
    monkeypatch.setenv("PARLEY_CLIENT_SECRET", "wrong-one")
    ran = parley("auth", "login", agent.url, *flags, "-o", "json")
    assert (ran.status, ran.error["code"]) == (4, "A2ACLI_ERR_AUTH_FAILED")
    assert "wrong-one" not in ran.stdout + ran.stderr
    assert not folder.exists()
    monkeypatch.delenv("PARLEY_CLIENT_SECRET")
    monkeypatch.setattr(sys, "stdin", io.StringIO("secret\n"))
    ran = parley("auth", "login", agent.url, *flags)
    assert ran.status == 0, ran.stderr
    assert sent(parley, agent)["authorization"].startswith("Bearer ey")


@pytest.mark.parametrize(
    ("scheme", "typed", "flags", "header"),
    [
        (
            {"apiKeySecurityScheme": {"location": "header", "name": "X-Key"}},
            "k-123\n",
            (),
            ("x-key", "k-123"),
        ),
        (
            {"httpAuthSecurityScheme": {"scheme": "Basic"}},
            "ada\npw\n",
            (),
            ("authorization", "Basic YWRhOnB3"),
        ),
        (
            {"httpAuthSecurityScheme": {"scheme": "Basic"}},
            "pw\n",
            ("--user", "ada"),
            ("authorization", "Basic YWRhOnB3"),
        ),
        (
            {"httpAuthSecurityScheme": {"scheme": "Bearer"}},
            "t-123\n",
            (),
            ("authorization", "Bearer t-123"),
        ),
    ],
)
def test_keys_and_passwords_are_kept_too(parley, agent, monkeypatch, scheme, typed, flags, header):
    """A2ACLI_AUTH_007."""
    requiring(agent, scheme)
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    ran = parley("auth", "login", agent.url, *flags)
    assert ran.status == 0, ran.stderr
    name, value = header
    assert sent(parley, agent)[name] == value
    assert parley("auth", "logout", agent.url).status == 0
    assert name not in sent(parley, agent)


def test_a_flag_counts_before_a_login(parley, agent, monkeypatch):
    requiring(agent, {"httpAuthSecurityScheme": {"scheme": "Bearer"}})
    monkeypatch.setattr(sys, "stdin", io.StringIO("kept\n"))
    assert parley("auth", "login", agent.url).status == 0
    ran = parley("task", "get", "task-1", "-a", agent.url, "--bearer", "given")
    assert ran.status == 0
    assert agent.asked[-1].headers["authorization"] == "Bearer given"


@pytest.mark.slow
def test_logging_out_forgets_and_revokes(parley, agent, issuer, folder):
    requiring(agent, openid(issuer))
    with Approver(issuer):
        assert parley("auth", "login", agent.url).status == 0
    ran = parley("auth", "logout", agent.url)
    assert (ran.status, ran.field("Logged out")) == (0, agent.url)
    assert issuer.requests["revoke"] == 2
    assert list(folder.iterdir()) == []
    ran = parley("auth", "logout", agent.url, "-o", "json")
    assert (ran.status, ran.error["code"]) == (4, "A2ACLI_ERR_CREDENTIALS_MISSING")
    assert parley("auth", "logout", "--all").status == 0


@pytest.mark.slow
def test_a_refusal_says_how_to_log_in(parley, agent, issuer):
    requiring(agent, openid(issuer))
    agent.says("GetTask", Answer(status=401))
    ran = parley("task", "get", "task-1", "-a", agent.url)
    assert ran.status == 4
    assert f"parley auth login {agent.url}" in ran.stderr.replace("-m parley", "parley")
    with Approver(issuer):
        assert parley("auth", "login", agent.url).status == 0
    ran = parley("task", "get", "task-1", "-a", agent.url, "-o", "json")
    assert (ran.status, ran.error["code"]) == (4, "A2ACLI_ERR_AUTH_FAILED")
    assert "auth login" in ran.error["hint"]


def test_what_cannot_be_logged_in_to_is_said(parley, agent, tmp_path):
    for arguments, words in (
        ((agent.url,), "declares no security"),
        ((agent.url, "--flow", "magic"), "not one of authorization-code"),
        ((agent.url, "-a", agent.url), "named twice"),
        (("http://agent.example", "--flow", "bearer"), ""),
    ):
        ran = parley("auth", "login", *arguments)
        assert ran.status in (2, 3)
        assert words in ran.stderr
    (tmp_path / "card.json").write_text(json.dumps(agent.card))
    ran = parley("auth", "login", "card.json")
    assert (ran.status, "declares no security" in ran.stderr) == (2, True)


@pytest.mark.parametrize(
    "setting", ["INSECURE=yes", "TRUST_ORIGIN=https://evil.example", "SVC_PARAM=Host: evil.example"]
)
def test_a_file_that_nobody_named_does_not_decide_how_logins_are_protected(
    parley, agent, monkeypatch, tmp_path, setting
):
    requiring(agent, {"httpAuthSecurityScheme": {"scheme": "Bearer"}})
    monkeypatch.setattr(sys, "stdin", io.StringIO("kept\n"))
    assert parley("auth", "login", agent.url).status == 0
    inside = tmp_path / "cloned"
    inside.mkdir()
    monkeypatch.chdir(inside)
    (inside / ".env").write_text(f"A2ACLI_{setting}\n")
    assert "authorization" not in sent(parley, agent)
    assert parley("auth", "login", agent.url).status == 2


@pytest.mark.slow
def test_a_certificate_is_shown_to_an_agent_that_wants_one(parley, agent, tmp_path):
    """A2ACLI_AUTH_009: mutual TLS."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=tmp_path, check=True, capture_output=True)

    for name in ("server", "client"):
        openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key", "-out",
                f"{name}.pem", "-subj", f"/CN={name}",
                "-addext", "subjectAltName=IP:127.0.0.1")  # fmt: skip
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=tmp_path / "client.pem")
    context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    context.verify_mode = ssl.CERT_REQUIRED
    agent.server.socket = context.wrap_socket(agent.server.socket, server_side=True)
    agent.url = agent.url.replace("http:", "https:")
    agent.card["supportedInterfaces"] = [agent.interface()]
    requiring(agent, {"mtlsSecurityScheme": {}})
    known = ("task", "get", "task-1", "-a", agent.url, "--ca-file", "server.pem")
    assert parley(*known).status == 3
    ran = parley(*known, "--client-cert", "client.pem", "--client-key", "client.key")
    assert ran.status == 0, ran.stderr
    ran = parley(*known, "--client-cert", "client.pem")
    assert (ran.status, "belong together" in ran.stderr) == (2, True)
