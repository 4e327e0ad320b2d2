"""The OpenAPI document of an agent, and its page for people."""

import base64
import hashlib
import re

import msgspec
import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator

from parley.extensions import FileTransfer
from parley.model.cards import (
    APIKeySecurityScheme,
    AuthorizationCodeOAuthFlow,
    DeviceCodeOAuthFlow,
    HTTPAuthSecurityScheme,
    MutualTlsSecurityScheme,
    OAuth2SecurityScheme,
    OAuthFlows,
    OpenIdConnectSecurityScheme,
    SecurityRequirement,
    SecurityScheme,
    StringList,
)
from parley.model.operations import OPERATIONS, StreamResponse
from parley.model.parts import Message, Part, Role
from parley.model.struct import Timestamp, encode
from parley.model.tasks import Artifact, Task, TaskState, TaskStatus
from parley.server.app import Endpoint, Settings, create_app
from parley.server.cards.openapi import document
from parley.server.run import serving
from tests.kit.http import ask
from tests.kit.scripted import Scripted, app_of, card_of
from tests.server.http.test_http_json_paths import COUNT, Counting

pytestmark = pytest.mark.anyio

EVERYTHING = card_of(push_notifications=True, extended_agent_card=True)


def made(card=None, *extensions, **options):
    return document(card or EVERYTHING(()), extensions, url="https://a.example", **options)


def operations(document):
    return {
        operation["operationId"]: (verb, path, operation)
        for path, verbs in document["paths"].items()
        for verb, operation in verbs.items()
    }


async def test_the_document_is_valid_and_says_where_the_agent_is():
    async with serving(create_app({"/time": Endpoint(Scripted(), EVERYTHING)})) as url:
        response = await ask(url, "GET", "/time/openapi.json")
    assert (response.status, response.headers["content-type"]) == (200, "application/json")
    assert response.headers["cache-control"] == "public, max-age=60"
    OpenAPIV31SpecValidator(response.json).validate()
    assert response.json["servers"] == [{"url": f"{url}/time"}]
    assert response.json["info"]["title"] == "Scripted"


def test_every_operation_has_its_verb_and_path():
    found = operations(made())
    for operation in OPERATIONS:
        verb, path, _ = found[operation.name]
        assert verb == operation.verb.lower()
        assert path == operation.path.replace("task_id", "taskId")
    assert len(found) == len(OPERATIONS)


def test_what_the_card_does_not_declare_is_left_out():
    found = operations(made(card_of(streaming=False)(())))
    assert set(found) == {"SendMessage", "GetTask", "ListTasks", "CancelTask"}


def test_parameters_are_typed_and_spelled_as_on_the_wire():
    _, _, operation = operations(made())["ListTasks"]
    parameters = {p["name"]: p for p in operation["parameters"] if "name" in p}
    assert parameters["pageSize"]["schema"] == {"type": "integer", "minimum": 0, "maximum": 100}
    assert parameters["includeArtifacts"]["schema"] == {"type": "boolean"}
    after = parameters["statusTimestampAfter"]["schema"]
    assert after == {"type": "string", "format": "date-time"}
    assert all(p["in"] == "query" for p in parameters.values())


def test_a_version_is_required_unless_the_server_takes_requests_without():
    assert made()["components"]["parameters"]["A2A-Version"]["required"]
    served = made(names_version=False)
    assert not served["components"]["parameters"]["A2A-Version"]["required"]


def test_the_body_of_a_request_is_what_its_path_does_not_say():
    found = operations(made())
    body = found["CreateTaskPushNotificationConfig"][2]["requestBody"]
    schema = body["content"]["application/a2a+json"]["schema"]
    assert set(schema["properties"]) == {"id", "url", "token", "authentication"}
    assert (body["required"], schema["required"]) == (True, ["url"])
    assert not found["CancelTask"][2]["requestBody"]["required"]
    assert "requestBody" not in found["SubscribeToTask"][2]
    assert "requestBody" not in found["DeleteTaskPushNotificationConfig"][2]


def test_answers_are_json_of_both_names_or_a_stream():
    found = operations(made())
    answer = found["GetTask"][2]["responses"]["200"]["content"]
    assert set(answer) == {"application/a2a+json", "application/json"}
    assert set(found["SendStreamingMessage"][2]["responses"]["200"]["content"]) == {
        "text/event-stream"
    }


def test_errors_are_told_by_their_status():
    whole = made()
    responses = whole["components"]["responses"]
    assert "TASK_NOT_FOUND" in responses["Error404"]["description"]
    assert "VERSION_NOT_SUPPORTED" in responses["Error400"]["description"]
    for _, _, operation in operations(whole).values():
        assert {"400", "401", "403", "404", "413", "415", "500", "503"} <= set(
            operation["responses"]
        )


def validator(document, name):
    return Draft202012Validator(
        {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
    )


def test_values_that_are_written_are_what_their_schemas_say():
    parts = (Part(text="a"), Part(raw=b"\x00\xff"), Part(url="u", filename="f"), Part(data=None))
    message = Message(message_id="m", role=Role.AGENT, parts=parts, metadata={"a": [1]})
    artifact = Artifact(artifact_id="a", parts=parts)
    status = TaskStatus(state=TaskState.COMPLETED, timestamp=Timestamp.now(), message=message)
    task = Task(id="t", context_id="c", status=status, artifacts=(artifact,), history=(message,))
    whole = made()
    validator(whole, "Task").validate(msgspec.json.decode(encode(task)))
    event = msgspec.json.decode(encode(StreamResponse.of(task)))
    validator(whole, "StreamResponse").validate(event)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Part", {}),
        ("Part", {"text": "a", "url": "b"}),
        ("Part", {"text": 1}),
        ("Message", {"messageId": "m", "parts": [{"text": "a"}]}),
        ("Message", {"messageId": "", "role": "ROLE_USER", "parts": [{"text": "a"}]}),
        ("Message", {"messageId": "m", "role": "ROLE_UNSPECIFIED", "parts": [{"text": "a"}]}),
        ("Message", {"messageId": "m", "role": "ROLE_USER", "parts": []}),
        ("StreamResponse", {}),
        ("SendMessageRequest", {}),
    ],
)
def test_schemas_refuse_what_is_refused(name, value):
    assert not validator(made(), name).is_valid(value)


def test_nothing_of_our_own_names_is_in_the_document():
    text = msgspec.json.encode(made()).decode()
    for name in ("task_id", "context_id", "None", "``", "null", "Raises"):
        assert name not in text


def test_methods_of_extensions_are_in_it():
    verb, path, operation = operations(made(None, Counting()))["count/one"]
    assert (verb, path) == ("get", "/counts/{id}")
    assert COUNT in operation["summary"]
    OpenAPIV31SpecValidator(made(None, Counting())).validate()


def test_security_schemes_come_from_the_card():
    flows = OAuthFlows(
        authorization_code=AuthorizationCodeOAuthFlow(
            authorization_url="https://o.example/a",
            token_url="https://o.example/t",
            scopes={"read": "Read"},
            pkce_required=True,
        )
    )
    device = DeviceCodeOAuthFlow(
        device_authorization_url="https://o.example/d", token_url="https://o.example/t", scopes={}
    )
    schemes = {
        "key": SecurityScheme(
            api_key_security_scheme=APIKeySecurityScheme(location="header", name="X-Key")
        ),
        "bearer": SecurityScheme(
            http_auth_security_scheme=HTTPAuthSecurityScheme(
                scheme="Bearer", bearer_format="JWT", description="A token"
            )
        ),
        "oauth": SecurityScheme(oauth2_security_scheme=OAuth2SecurityScheme(flows=flows)),
        "device": SecurityScheme(
            oauth2_security_scheme=OAuth2SecurityScheme(flows=OAuthFlows(device_code=device))
        ),
        "oidc": SecurityScheme(
            open_id_connect_security_scheme=OpenIdConnectSecurityScheme(
                open_id_connect_url="https://o.example/.well-known/openid-configuration"
            )
        ),
        "mtls": SecurityScheme(mtls_security_scheme=MutualTlsSecurityScheme()),
    }
    card = msgspec.structs.replace(
        EVERYTHING(()),
        security_schemes=schemes,
        security_requirements=(
            SecurityRequirement(schemes={"oauth": StringList(list=("read",))}),
            SecurityRequirement(schemes={"device": StringList()}),
        ),
    )
    whole = made(card)
    OpenAPIV31SpecValidator(whole).validate()
    described = whole["components"]["securitySchemes"]
    assert described["key"] == {"type": "apiKey", "in": "header", "name": "X-Key"}
    assert described["bearer"] == {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "JWT",
        "description": "A token",
    }
    flow = described["oauth"]["flows"]["authorizationCode"]
    assert flow["scopes"] == {"read": "Read"}
    assert "pkceRequired" not in flow
    # OpenAPI 3.1 has no flow for devices.
    assert "device" not in described
    assert described["mtls"] == {"type": "mutualTLS"}
    assert whole["security"] == [{"oauth": ["read"]}]


# Pages


@pytest.fixture
async def served():
    tenants = {"acme": Endpoint(Scripted(), card_of("Acme"))}
    app = create_app({"": Endpoint(Scripted(), EVERYTHING, tenants=tenants)})
    async with serving(app) as url:
        yield url


async def test_a_tenant_has_a_document_of_its_own(served):
    response = await ask(served, "GET", "/acme/openapi.json")
    assert response.json["info"]["title"] == "Acme"
    assert response.json["servers"] == [{"url": f"{served}/acme"}]
    assert (await ask(served, "GET", "/acme/docs")).status == 200


async def test_the_page_loads_and_runs_nothing_but_itself(served):
    response = await ask(served, "GET", "/docs")
    assert (response.status, response.headers["content-type"]) == (200, "text/html; charset=utf-8")
    policy = response.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for kind in ("script", "style"):
        inline = re.findall(rb"<%b[^>]*>(.*?)</%b>" % ((kind.encode(),) * 2), response.body, re.S)
        digests = [base64.b64encode(hashlib.sha256(each).digest()).decode() for each in inline]
        allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
        assert digests
        assert f"{kind}-src {allowed};" in f"{policy};"
    # An icon that is nothing keeps a browser from asking for one.
    text = response.body.decode().replace('<link rel="icon" href="data:,">', "", 1)
    assert not re.search(r"\ssrc=|<link|@import|\burl\(|\sstyle=|\son\w+=\"", text)
    assert response.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", ["/docs", "/openapi.json"])
async def test_pages_are_read_and_nothing_else(served, path):
    head = await ask(served, "HEAD", path)
    assert (head.status, head.body) == (200, b"")
    assert int(head.headers["content-length"]) > 1000
    response = await ask(served, "POST", path, b"{}", {"A2A-Version": "1.0"})
    assert (response.status, response.headers["allow"]) == (405, "GET, HEAD")


async def test_pages_can_be_switched_off():
    async with serving(app_of(settings=Settings(docs=False))) as url:
        for path in ("/docs", "/openapi.json"):
            assert (await ask(url, "GET", path)).status == 404


async def test_a_host_that_cannot_be_one_is_not_written_into_a_document(served):
    response = await ask(served, "GET", "/openapi.json", b"", {"Host": "a b"})
    assert response.status == 400


async def test_a_document_is_made_once_for_an_address(monkeypatch):
    """To make one takes long: who asks for many would hold up everybody else."""
    made_for = []

    def counting(card, extensions, **options):
        made_for.append((card.name, options["url"]))
        return document(card, extensions, **options)

    monkeypatch.setattr("parley.server.cards.openapi.document", counting)
    names = ["First"]

    def card(interfaces):
        return msgspec.structs.replace(EVERYTHING(interfaces), name=names[-1])

    app = create_app({"": Endpoint(Scripted(), card)}, settings=Settings(allowed_hosts=("*",)))
    async with serving(app) as url:

        async def title(host):
            response = await ask(url, "GET", "/openapi.json", b"", {"Host": host})
            assert response.json["servers"][0]["url"] == f"http://{host}"
            return response.json["info"]["title"]

        for _ in range(3):
            assert await title("a.example") == "First"
        assert await title("b.example") == "First"
        names.append("Second")
        for _ in range(3):
            assert await title("a.example") == "Second"
        for n in range(100):  # hosts are what callers say, so few are kept
            await title(f"{n}.example")
    assert made_for[:3] == [
        ("First", "http://a.example"),
        ("First", "http://b.example"),
        ("Second", "http://a.example"),
    ]
    assert len(made_for) == 103


def test_the_paths_of_files_are_in_it_where_the_server_keeps_files():
    files = FileTransfer(upload_url="https://x.example/files", max_bytes=5, inline_bytes=1)
    card = card_of(extensions=(files.declared(),))(())
    document = made(card)
    OpenAPIV31SpecValidator(document).validate()
    assert {"/files", "/files/{id}", "/files/{id}/upload"} <= document["paths"].keys()
    assert document["paths"]["/files/{id}/upload"].keys() == {"patch", "head"}
