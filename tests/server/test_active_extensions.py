"""Service parameters: the version and the extensions of a request."""

import pytest

from parley.model.errors import VersionNotSupportedError
from parley.server.app import Settings
from parley.server.run import serving
from parley.wire import versions
from tests.kit.http import ask, call, post
from tests.kit.scripted import EXTENSION, app_of, card_of, extension

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("named", ["1.0", " 1.0 ", "1.0.1", "1.0.0-rc"])
def test_version_1_0_is_served_however_it_is_spelled(named):
    assert versions.requested(named) == "1.0"


@pytest.mark.parametrize("named", ["", "  "])
def test_an_empty_version_is_none(named):
    assert versions.requested(named) == ""


@pytest.mark.parametrize(
    "named", ["1.1", "2.0", "99.0", "1", "10", "1.0x", "v1.0", "0.2", "\xff\xfe", "٣.0"]
)
def test_every_other_version_is_refused(named):
    with pytest.raises(VersionNotSupportedError) as raised:
        versions.requested(named)
    assert "1.0, 0.3" in raised.value.message
    assert raised.value.metadata["supportedVersions"] == "1.0, 0.3"


async def test_an_unsupported_version_is_refused_with_those_that_are(url, service):
    response = await post(url, call(), {"A2A-Version": "99.0"})
    assert response.status == 200
    assert response.error["code"] == -32009
    assert response.reason == "VERSION_NOT_SUPPORTED"
    assert response.error["data"][0]["metadata"] == {
        "requestedVersion": "99.0",
        "supportedVersions": "1.0, 0.3",
    }
    assert response.headers["a2a-version"] == "1.0"
    assert response.json["id"] == 1
    assert service.asked == []


async def test_a_request_without_a_version_is_told_the_header_to_send(url):
    response = await ask(url, "POST", "/", call(), {"Content-Type": "application/json"})
    assert response.error["code"] == -32009
    assert "A2A-Version: 1.0" in response.error["message"]


async def test_a_version_in_the_query_counts(url):
    headers = {"Content-Type": "application/json"}
    assert "result" in (await ask(url, "POST", "/?A2A-Version=1.0", call(), headers)).json
    assert "error" in (await ask(url, "POST", "/?A2A-Version=0.3", call(), headers)).json


async def test_a_setting_serves_requests_without_a_version():
    async with serving(app_of(settings=Settings(missing_version="1.0"))) as url:
        response = await ask(url, "POST", "/", call(), {"Content-Type": "application/json"})
        assert "result" in response.json
        # Only the missing version: one that is named stays refused.
        assert "error" in (await post(url, call(), {"A2A-Version": "0.3"})).json


OTHER = "urn:example:letters:v2"


@pytest.fixture
async def extended(service):
    card = card_of(extensions=(extension(), extension(uri=OTHER)))
    async with serving(app_of(service, card=card)) as address:
        yield address


async def test_extensions_that_the_card_declares_are_in_force_and_echoed(extended, service):
    asked = f"{OTHER}, urn:example:unknown:v1 ,{EXTENSION}"
    response = await post(extended, call(), {"A2A-Extensions": asked})
    assert service.context.extensions == {EXTENSION, OTHER}
    assert set(response.headers["a2a-extensions"].split(", ")) == {EXTENSION, OTHER}


async def test_the_header_may_come_more_than_once(extended, service):
    # Names of headers do not care about case, so this is twice the same one.
    headers = {"A2A-Extensions": EXTENSION, "a2a-extensions": OTHER}
    await post(extended, call(), headers)
    assert service.context.extensions == {EXTENSION, OTHER}


async def test_unknown_extensions_are_passed_over(extended, service):
    response = await post(extended, call(), {"A2A-Extensions": "urn:example:unknown:v1,,"})
    assert "result" in response.json
    assert service.context.extensions == frozenset()
    assert "a2a-extensions" not in response.headers


async def test_a_required_extension_must_be_asked_for(service):
    card = card_of(extensions=(extension(required=True),))
    async with serving(app_of(service, card=card)) as url:
        refused = await post(url, call())
        assert refused.error["code"] == -32008
        assert refused.reason == "EXTENSION_SUPPORT_REQUIRED"
        assert EXTENSION in refused.error["message"]
        assert service.asked == []
        assert "result" in (await post(url, call(), {"A2A-Extensions": EXTENSION})).json


@pytest.mark.parametrize(
    ("method", "code", "field"),
    [
        ("SendStreamingMessage", -32004, "capabilities.streaming"),
        ("SubscribeToTask", -32004, "capabilities.streaming"),
        ("ListTaskPushNotificationConfigs", -32003, "capabilities.pushNotifications"),
        ("GetExtendedAgentCard", -32004, "capabilities.extendedAgentCard"),
    ],
)
async def test_what_the_card_does_not_declare_is_refused(service, method, code, field):
    async with serving(app_of(service, card=card_of(streaming=False))) as url:
        response = await post(url, call(method))
    assert response.status == 200
    assert response.headers["content-type"] == "application/json"
    assert response.error["code"] == code
    assert field in response.error["message"]
    assert service.asked == []
