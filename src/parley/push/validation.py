"""Validates a push notification configuration before it is stored. Calls nothing."""

from __future__ import annotations

import re
from functools import partial
from urllib.parse import urlsplit

from msgspec.structs import replace

from parley.model.errors import FieldViolation, InvalidParamsError
from parley.model.ids import new_id
from parley.model.operations import AuthenticationInfo, TaskPushNotificationConfig
from parley.push.proofs.proofs import Proofs
from parley.security.egress import Egress, ForbiddenAddress, normalize_host
from parley.store.protocols.webhooks import PushRecord

MAX_ID = 256
MAX_URL = 2048
MAX_SECRET = 4096

_SCHEME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}")
_HEADER = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_NOT_IN_URL = re.compile(r"[\s\x00-\x20\x7f-\x9f\\\ud800-\udfff]")
_IN_BRACKETS = re.compile(r"\[[0-9A-Fa-f:.]+\](?::[0-9]*)?")


def validated(
    config: TaskPushNotificationConfig,
    egress: Egress,
    *,
    version: str,
    at: str = "",
    proofs: Proofs | None = None,
) -> PushRecord:
    """Return the record to store for a configuration.

    ``version`` is that of the request; notifications are written in it. ``at`` is the path of the
    configuration in the request. ``proofs`` are what this server can prove itself with, and
    encrypt the secrets. Raises ``InvalidParamsError``, which names every violation and repeats no
    secret.
    """
    wrong = _wrong_url(config.url, egress)
    authentication = config.authentication
    problems = [
        ("id", _wrong_id(config.id)),
        ("url", wrong),
        ("token", _wrong_secret(config.token)),
    ]
    malformed = _wrong_authentication(authentication)
    problems += malformed
    proofs = proofs or Proofs(egress)
    if authentication is not None and not wrong and not malformed:
        wrong_url = partial(_wrong_url, egress=egress)
        problems += proofs.problems(authentication, config.url, wrong_url)
    violations = [FieldViolation(f"{at}{field}", problem) for field, problem in problems if problem]
    if violations:
        message = "; ".join(f"{each.field}: {each.description}" for each in violations)
        raise InvalidParamsError(message, violations=tuple(violations))
    if authentication is not None and not authentication.scheme:
        authentication = None  # some clients write "none" so
    config = replace(config, tenant="", task_id="", authentication=authentication)
    return PushRecord(config=proofs.secrets.sealed(config), version=version, revision=new_id())


def _wrong_id(push_id: str) -> str:
    if len(push_id) > MAX_ID or _CONTROLS.search(push_id) or push_id in (".", ".."):
        return f"at most {MAX_ID} characters, none of them a control character"
    return ""


def _wrong_url(url: str, egress: Egress) -> str:
    if len(url) > MAX_URL:
        return f"at most {MAX_URL} characters"
    try:
        address = urlsplit(url)
        host, port = address.hostname or "", address.port  # which has to be a number
    except ValueError:
        host, port = "", None
    if not host or address.scheme not in ("http", "https") or _NOT_IN_URL.search(url):
        return "an absolute http or https URL, such as https://example.com/notifications"
    if "@" in address.netloc:
        return "a URL without user and password; give credentials as authentication"
    if port == 0:
        return "a URL with a port from 1 to 65535, or without one"
    try:
        if "[" in address.netloc and not _IN_BRACKETS.fullmatch(address.netloc):
            raise ValueError("an IPv6 address in brackets, or a name without them")
        host = normalize_host(host)
    except ValueError as error:
        return f"a URL whose host is {error}"
    try:
        egress.check_host(host, port or (443 if address.scheme == "https" else 80))
    except ForbiddenAddress as error:
        return f"{error}, to which this server sends nothing"
    return ""


def _wrong_secret(secret: str) -> str:
    if secret and (len(secret) > MAX_SECRET or not _HEADER.fullmatch(secret)):
        return (
            f"at most {MAX_SECRET} printable ASCII characters, not beginning or ending with "
            "a space, as it is sent in a header"
        )
    return ""


def _wrong_authentication(given: AuthenticationInfo | None) -> list[tuple[str, str]]:
    """Return what is malformed."""
    if given is None or not (given.scheme or given.credentials):
        return []
    scheme = "" if _SCHEME.fullmatch(given.scheme) else "an HTTP authentication scheme, as Bearer"
    found = [
        ("authentication.scheme", scheme),
        ("authentication.credentials", _wrong_secret(given.credentials)),
    ]
    return [each for each in found if each[1]]
