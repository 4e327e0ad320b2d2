"""The OpenAPI document of an agent, and its HTML page."""

import msgspec
import pytest
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
from parley.server.app import Endpoint, create_app
from parley.server.cards.openapi import document
from parley.server.run import serving
from tests.kit.http import ask
from tests.kit.scripted import Scripted, card_of
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


def test_what_the_card_does_not_declare_is_left_out():
    found = operations(made(card_of(streaming=False)(())))
    assert set(found) == {"SendMessage", "GetTask", "ListTasks", "CancelTask"}


def test_nothing_of_our_own_names_is_in_the_document():
    text = msgspec.json.encode(made()).decode()
    for name in ("task_id", "context_id", "None", "``", "null", "Raises"):
        assert name not in text


@pytest.mark.slow
def test_methods_of_extensions_are_in_it():
    verb, path, operation = operations(made(None, Counting()))["count/one"]
    assert (verb, path) == ("get", "/counts/{id}")
    assert COUNT in operation["summary"]
    OpenAPIV31SpecValidator(made(None, Counting())).validate()


@pytest.mark.slow
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
    # OpenAPI 3.1 has no device flow.
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


async def test_the_document_is_read_and_nothing_else(served):
    path = "/openapi.json"
    head = await ask(served, "HEAD", path)
    assert (head.status, head.body) == (200, b"")
    assert int(head.headers["content-length"]) > 1000
    response = await ask(served, "POST", path, b"{}", {"A2A-Version": "1.0"})
    assert (response.status, response.headers["allow"]) == (405, "GET, HEAD")


async def test_a_host_that_cannot_be_one_is_not_written_into_a_document(served):
    response = await ask(served, "GET", "/openapi.json", b"", {"Host": "a b"})
    assert response.status == 400


def test_the_paths_of_files_are_in_it_where_the_server_keeps_files():
    files = FileTransfer(upload_url="https://x.example/files", max_bytes=5, inline_bytes=1)
    card = card_of(extensions=(files.declared(),))(())
    document = made(card)
    OpenAPIV31SpecValidator(document).validate()
    assert {"/files", "/files/{id}", "/files/{id}/upload"} <= document["paths"].keys()
    assert document["paths"]["/files/{id}/upload"].keys() == {"patch", "head"}
