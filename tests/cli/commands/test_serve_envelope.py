"""``parley serve --envelope-keys``: signed messages, also after the server was killed."""

from __future__ import annotations

import json
import re
import secrets
import urllib.error
import urllib.request

from parley.envelope.codec import write_message
from parley.envelope.signatures import EnvelopeKey, sign_message
from parley.security.signing.keys import encode
from tests.kit.processes import Running
from tests.server.envelope.guarded import message

AGENT = """
from parley import Agent, CardDetails, EnvelopeSettings

agent = Agent("Clock", card=CardDetails(envelope=EnvelopeSettings(signed=True)))


@agent.skill
def now() -> str:
    return "12:00"
"""


def test_a_killed_server_forgets_no_message_that_it_admitted(tmp_path):
    key = EnvelopeKey(
        id="k1", owner="shop", algorithm="HMAC-SHA256", material=secrets.token_bytes(32)
    )
    (tmp_path / "clock.py").write_text(AGENT)
    path = tmp_path / "keys.json"
    jwk = {"owner": "shop", "kid": "k1", "kty": "oct", "k": encode(key.material)}
    path.write_text(json.dumps({"keys": [jwk]}))
    path.chmod(0o600)
    sent = write_message(sign_message(message("shop", target=""), key))
    words = ["serve", "clock.py", "--port", "0", "--store", "sqlite:///tasks.db"]
    words += ["--envelope-keys", "keys.json"]
    codes = []
    with Running(words, tmp_path) as server:
        url = re.search(r"address +(http://\S+)", server.until("Ctrl-C stops the server"))[1]
        codes.append(_answer(url, sent))  # it names no target
        sent = write_message(sign_message(message("shop", target="clock"), key))
        codes.append(_answer(url, sent))
        server.process.kill()
    with Running(words, tmp_path) as server:
        url = re.search(r"address +(http://\S+)", server.until("Ctrl-C stops the server"))[1]
        codes.append(_answer(url, sent))
    assert codes == ["TARGET_NOT_FOUND", "success", "MESSAGE_REPLAYED"]


def _answer(url: str, body: bytes) -> str:
    """Return the code of an error, or the status."""
    request = urllib.request.Request(f"{url}/envelope", body, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=15) as answer:
            payload = json.load(answer)["payload"]
    except urllib.error.HTTPError as error:
        payload = json.load(error)["payload"]
    return payload["error"]["code"] if "error" in payload else payload["status"]
