"""No secret that was used appears in a server's output, files and responses."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from joserfc.jwk import OctKey

from parley.conformance.signing_keys import signed
from parley.testing import Issuer
from tests.attacks.guards import basic, bearer
from tests.kit.waiting import wait_until

NAMES = (
    "openid", "jwt", "introspection", "bearer", "basic", "header", "query", "cookie", "stored",
    "either",
)  # fmt: skip
TOKENS: tuple[dict[str, Any], ...] = (
    {}, {"expires_in": -120}, {"audience": "hotel"}, {"issuer": "https://evil.example"},
    {"forged": True}, {"alg": "none"}, {"alg": "HS256"}, {"payload": b"[]"},
)  # fmt: skip
URL = re.compile(r"http://127\.0\.0\.1:\d+")
ROOT = Path(__file__).parents[2]
SECRETS = {
    "LEAKY_SECRET": "shared-secret-of-32-bytes-at-least-0001",
    "LEAKY_CLIENT_SECRET": "secret-of-this-server-0002",
    "LEAKY_BEARER": "bearer-of-ada-0003",
    "LEAKY_PASSWORD": "password-of-ada-0004",
    "LEAKY_KEY": "key-of-ada-0005",
    "LEAKY_QUERY": "query-of-ada-0006",
    "LEAKY_COOKIE": "cookie-of-ada-0007",
}
PATHS = ("", "/.well-known/agent-card.json", "/openapi.json", "/", "/tasks/any")


class Leaky:
    """A server in its own process, and all of its output."""

    def __init__(self, home: Path, issuer: Issuer) -> None:
        self.home = home
        self.answers: list[bytes] = []
        self.environment = {
            **os.environ,
            **SECRETS,
            "LEAKY_ISSUER": issuer.url,
            "HOME": str(home),
            "PYTHONPATH": str(ROOT),
            "PARLEY_STORE": f"sqlite:///{home / 'tasks.db'}",
        }

    def parley(self, *words: str) -> str:
        """Run a command to its end, and return its output."""
        done = subprocess.run(
            [sys.executable, "-m", "parley.cli", *words],
            env=self.environment,
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @contextmanager
    def serving(self) -> Iterator[str]:
        log = self.home / "server.log"
        with log.open("wb") as output:
            server = subprocess.Popen(
                [sys.executable, "-m", "tests.attacks.leaky_server"],
                env=self.environment,
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            try:
                wait_until(lambda: server.poll() is not None or bool(URL.search(log.read_text())))
                found = URL.search(log.read_text())
                assert found, log.read_text()
                yield found[0]
            finally:
                server.terminate()
                server.wait(20)
                print(log.read_text()[-3000:])

    def ask(self, url: str, headers: Mapping[str, str], body: bytes | None = None) -> None:
        """Send a request, and keep the response whatever its status is."""
        given = {"A2A-Version": "1.0", "Content-Type": "application/json", **headers}
        try:
            with urlopen(Request(url, body, given), timeout=20) as answer:
                self.answers.append(str(answer.headers).encode() + answer.read())
        except HTTPError as error:
            self.answers.append(str(error.headers).encode() + error.read())

    def attack(self, url: str, headers: Mapping[str, str], query: str = "") -> None:
        """Send every request that a caller can send, right and wrong, with some credentials."""
        for path in PATHS:
            self.ask(url + path + query, headers)
        for text in ("hi", "fail now"):
            message = {"messageId": os.urandom(8).hex(), "role": "ROLE_USER"}
            message |= {"parts": [{"text": text}]}
            if text.startswith("fail"):
                message["metadata"] = {"skill": "fail"}
            call: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage"}
            call["params"] = {"message": message}
            self.ask(url + query, headers, json.dumps(call).encode())
            self.ask(url + "/message:send" + query, headers, json.dumps(call["params"]).encode())
        self.ask(url + query, headers, b'{"jsonrpc": "2.0", "id": 1, "method": "No"')
        self.ask(url + "/message:send" + query, headers, b'{"message": 7}')

    def kept(self) -> dict[str, bytes]:
        """Return all texts that a reader could find, by their location."""
        found = {f"answer {number}": answer for number, answer in enumerate(self.answers)}
        for path in self.home.rglob("*"):
            if path.is_file():
                found[str(path.relative_to(self.home))] = path.read_bytes()
        return found


def test_no_secret_is_found_in_what_a_server_leaves_behind(tmp_path: Path) -> None:
    clients = {"service": SECRETS["LEAKY_CLIENT_SECRET"]}
    with Issuer(audience="vault", clients=clients) as issuer:
        leaky = Leaky(tmp_path, issuer)
        secrets = list(SECRETS.values())
        with leaky.serving() as url:
            key = json.loads(leaky.parley("keys", "create", "--owner", "ada", "-o", "json"))["key"]

            def use(name: str, headers: Mapping[str, str], *used: str, query: str = "") -> None:
                secrets.extend(used)
                leaky.attack(f"{url}/{name}", headers, query)

            for wrong in TOKENS:
                token = issuer.token("ada", **wrong)
                use("openid", bearer(token), token)
                use("either", bearer(token), token)
            shared = SECRETS["LEAKY_SECRET"]
            claims = {
                "iss": issuer.url,
                "aud": "vault",
                "sub": "ada",
                "exp": int(issuer.now()) + 60,
            }
            token = signed({"alg": "HS256", "typ": "JWT"}, claims, OctKey.import_key(shared))
            use("jwt", bearer(token), token)
            opaque, foreign = (issuer.token(opaque=True, audience=a) for a in ("vault", "hotel"))
            for token in (opaque, foreign, "made-up-opaque-0010"):
                use("introspection", bearer(token), token)
            for token in (SECRETS["LEAKY_BEARER"], "made-up-token-0011", "breaks-token-0012"):
                use("bearer", bearer(token), token)
            for user, password in (
                ("ada", SECRETS["LEAKY_PASSWORD"]),
                ("ada", "wrong-password-0013"),
                ("ada", "breaks-password-0014"),
                ("password-as-user-0015", ""),
            ):
                use("basic", basic(user, password), password or user)
            for name, secret in (("header", "LEAKY_KEY"), ("stored", "")):
                for each in (SECRETS.get(secret, key), f"made-up-key-{name}-0016"):
                    use(name, {"x-api-key": each}, each)
            for each in (SECRETS["LEAKY_QUERY"], "made-up-query-0017"):
                use("query", {}, each, query=f"?api_key={each}")
            for each in (SECRETS["LEAKY_COOKIE"], "made-up-cookie-0018"):
                use("cookie", {"cookie": f"sid={each}"}, each)
            # Malformed credentials, and credentials of another scheme.
            use("openid", {"authorization": "Bearer two words-0019"}, "words-0019")
            use("openid", {"authorization": "Basic not-base64-0020"}, "not-base64-0020")
            use("header", bearer("token-for-a-key-0021"), "token-for-a-key-0021")
            answered = b"".join(leaky.answers)
            (tmp_path / "keys.txt").write_text(leaky.parley("keys", "list", "-o", "json"))
            leaky.parley("store", "export", str(tmp_path / "export.jsonl"))
        found = leaky.kept()
    assert b"kept for ada" in answered, "no credentials were accepted"
    assert b"credentials rejected" in found["server.log"]
    assert b"kept for ada" in found["export.jsonl"]
    assert b"failed for" in found["server.log"]
    leaks = [
        (place, secret)
        for secret in filter(None, secrets)
        for form in forms(secret)
        for place, content in found.items()
        if form in content
    ]
    assert not leaks


def forms(secret: str) -> list[bytes]:
    """Return the forms of a secret: plain, in base64, and the parts of a token."""
    found = [secret.encode(), base64.b64encode(secret.encode()).rstrip(b"=")]
    if secret.count(".") == 2:
        # A short part, such as W10 for an empty list, would be found by chance.
        found += [part.encode() for part in secret.split(".")[1:] if len(part) > 8]
    return found
