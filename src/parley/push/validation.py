"""Whether a push notification configuration can be taken, before anything is done about it."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from msgspec.structs import replace

from parley.model.errors import FieldViolation, InvalidParamsError
from parley.model.push import AuthenticationInfo, TaskPushNotificationConfig
from parley.model.uuid7 import new_id
from parley.security.egress import Egress, ForbiddenAddress, normalize_host
from parley.store.task_store import PushRecord

LONGEST_ID = 256
LONGEST_URL = 2048
LONGEST_SECRET = 4096

_SCHEME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}")
_HEADER = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_NOT_IN_URL = re.compile(r"[\s\x00-\x20\x7f-\x9f\\\ud800-\udfff]")
_IN_BRACKETS = re.compile(r"\[[0-9A-Fa-f:.]+\](?::[0-9]*)?")


def checked(
    config: TaskPushNotificationConfig, egress: Egress, *, version: str, at: str = ""
) -> PushRecord:
    """Return a configuration as it is to be kept.

    ``version`` is that of the request, in which the webhook will be told. ``at`` is the path of
    the configuration in the request. Raises ``InvalidParamsError`` that names all that is wrong,
    and repeats no secret.
    """
    wrong: list[FieldViolation] = []
    for field, problem in (
        ("id", _wrong_id(config.id)),
        ("url", _wrong_url(config.url, egress)),
        ("token", _wrong_secret(config.token)),
        *_wrong_authentication(config.authentication),
    ):
        if problem:
            wrong.append(FieldViolation(f"{at}{field}", problem))
    if wrong:
        said = "; ".join(f"{violation.field}: {violation.description}" for violation in wrong)
        raise InvalidParamsError(said, violations=tuple(wrong))
    authentication = config.authentication
    if authentication is not None and not authentication.scheme:
        authentication = None  # as some clients write that there is none
    config = replace(config, tenant="", task_id="", authentication=authentication)
    return PushRecord(config=config, version=version, revision=new_id())


def _wrong_id(push_id: str) -> str:
    if len(push_id) > LONGEST_ID or _CONTROLS.search(push_id) or push_id in (".", ".."):
        return f"at most {LONGEST_ID} characters, none of them a control character"
    return ""


def _wrong_url(url: str, egress: Egress) -> str:
    if len(url) > LONGEST_URL:
        return f"at most {LONGEST_URL} characters"
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
        egress.check_host(host)
    except ForbiddenAddress as error:
        return f"{error}, to which this server sends nothing"
    return ""


def _wrong_secret(secret: str) -> str:
    if secret and (len(secret) > LONGEST_SECRET or not _HEADER.fullmatch(secret)):
        return (
            f"at most {LONGEST_SECRET} printable ASCII characters, not beginning or ending with "
            "a space, as it is sent in a header"
        )
    return ""


def _wrong_authentication(given: AuthenticationInfo | None) -> list[tuple[str, str]]:
    if given is None or not (given.scheme or given.credentials):
        return []
    scheme = "" if _SCHEME.fullmatch(given.scheme) else "an HTTP authentication scheme, as Bearer"
    return [
        ("authentication.scheme", scheme),
        ("authentication.credentials", _wrong_secret(given.credentials)),
    ]
