"""A receiver of webhooks on ``standardwebhooks`` and PyJWT.

    python receiver.py hmac SECRET
    python receiver.py jwt ADDRESS_OF_KEYS ISSUER

It prints its address, then a line of JSON for each delivery, and ends with its standard input.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from standardwebhooks import Webhook

scheme, key, *issuer = sys.argv[1:]


class Hook(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        try:
            VERIFIERS[scheme](headers, body)
            why = ""
        except Exception as error:
            why = type(error).__name__
        print(json.dumps({"id": headers.get("webhook-id"), "why": why}), flush=True)
        self.send_response(401 if why else 204)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *given: Any) -> None:
        """Log nothing."""


def verify_hmac(headers: dict[str, str], body: bytes) -> None:
    Webhook(key).verify(body.decode(), headers)


def verify_jwt(headers: dict[str, str], body: bytes) -> None:
    token = headers["authorization"].removeprefix("Bearer ")
    claims = jwt.decode(
        token,
        keys.get_signing_key_from_jwt(token).key,
        algorithms=["ES256"],
        issuer=issuer[0],
        audience=url,
        options={"require": ["exp", "iat", "jti"]},
    )
    assert claims["jti"] == headers["webhook-id"]
    assert claims["request_body_sha256"] == hashlib.sha256(body).hexdigest()


VERIFIERS = {"hmac": verify_hmac, "jwt": verify_jwt}
keys = jwt.PyJWKClient(key) if scheme == "jwt" else None
server = ThreadingHTTPServer(("127.0.0.1", 0), Hook)
url = f"http://127.0.0.1:{server.server_address[1]}/hook"
print(url, flush=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
sys.stdin.read()
