"""The gRPC address on cards, and gRPC's own services: health and reflection."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest, ServerReflectionResponse

from parley.model.operations import GetExtendedAgentCardRequest
from parley.server.app import Endpoint, create_app
from parley.server.run import serving
from parley.server.settings import GrpcOptions, grpc_options
from tests.kit.grpc import rpc_to
from tests.kit.http import ask
from tests.kit.scripted import Scripted, app_of, card_of

pytestmark = pytest.mark.anyio


CARD = "/.well-known/agent-card.json"


async def grpc_interfaces(url, path="", **headers):
    """Address, version and tenant of every gRPC interface on a card."""
    response = await ask(url, "GET", path + CARD, headers={"A2A-Version": "1.0", **headers})
    return [
        (each["url"], each["protocolVersion"], each.get("tenant", ""))
        for each in response.json["supportedInterfaces"]
        if each["protocolBinding"] == "GRPC"
    ]


async def test_an_agent_alone_is_advertised_without_a_tenant_and_its_tenants_by_their_names():
    tenants = {"acme": Endpoint(Scripted(), card_of())}
    app = create_app({"/time": Endpoint(Scripted(), card_of(), tenants=tenants)})
    async with serving(app, grpc=GrpcOptions(port=0)) as url:
        here = f"127.0.0.1:{app.grpc.port}"
        assert await grpc_interfaces(url, "/time") == [(here, "1.0", ""), (here, "0.3", "")]
        assert await grpc_interfaces(url, "/time/acme") == [(here, "1.0", "acme")]
        assert await grpc_interfaces(url, "/a2a/acme") == [(here, "1.0", "acme")]


async def test_the_extended_card_says_over_grpc_where_the_agent_is():
    async def extended(request, context):
        return card_of("Extended")(())

    service = Scripted(get_extended_agent_card=extended)
    app = app_of(service, card=card_of(extended_agent_card=True))
    async with rpc_to(app) as rpc:
        card = await rpc.ask("GetExtendedAgentCard", GetExtendedAgentCardRequest())
    found = {each.protocol_binding: each.url for each in card.supported_interfaces}
    assert card.name == "Extended"
    assert found["JSONRPC"].startswith("http://127.0.0.1:")
    assert found["GRPC"].startswith("127.0.0.1:")


def test_options_are_none_without_a_port():
    assert grpc_options(None, cert=None) is None
    assert grpc_options(0, host="::1") == GrpcOptions(port=0, host="::1")
    with pytest.raises(ValueError, match="grpc_cert, grpc_key alone have no effect"):
        grpc_options(None, cert="a", key="b", host=None)


# -- gRPC's own services: health, and reflection ---------------------------------------------------


SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3
A2A = ("lf.a2a.v1.A2AService", "a2a.v1.A2AService")


@pytest.fixture(scope="module")
async def channel():
    async with rpc_to(app_of()) as rpc:
        yield rpc.channel


def asked(service: str) -> bytes:
    return health_pb2.HealthCheckRequest(service=service).SerializeToString()


def status(data: bytes) -> int:
    return health_pb2.HealthCheckResponse.FromString(data).status


@pytest.mark.parametrize("service", ["", *A2A])
async def test_a_server_is_healthy(channel, service):
    check = channel.unary_unary("/grpc.health.v1.Health/Check")
    assert status(await check(asked(service))) == SERVING


async def test_a_service_that_there_is_not_has_no_health(channel):
    check = channel.unary_unary("/grpc.health.v1.Health/Check")
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await check(asked("nothing"))
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND
    watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(asked("nothing"))
    assert status(await anext(watch.__aiter__())) == SERVICE_UNKNOWN
    watch.cancel()


async def test_the_health_of_all_services_is_listed(channel):
    data = await channel.unary_unary("/grpc.health.v1.Health/List")(b"")
    listed = health_pb2.HealthListResponse.FromString(data).statuses
    assert {name: listed[name].status for name in listed} == {name: SERVING for name in ("", *A2A)}


async def test_a_server_that_drains_is_no_longer_serving():
    app = app_of()
    async with rpc_to(app) as rpc:
        watch = rpc.channel.unary_stream("/grpc.health.v1.Health/Watch")(asked(A2A[0]))
        told = watch.__aiter__()
        assert status(await asyncio.wait_for(anext(told), 5)) == SERVING
        app.lifecycle.drain()
        assert status(await asyncio.wait_for(anext(told), 5)) == NOT_SERVING
        check = rpc.channel.unary_unary("/grpc.health.v1.Health/Check")
        assert status(await check(b"")) == NOT_SERVING
        assert [data async for data in told] == []


@pytest.mark.slow
async def test_a_server_whose_store_is_away_does_not_serve_until_it_is_back():
    unavailable_reason = [""]
    async with rpc_to(app_of(unavailable_reason=lambda: unavailable_reason[0])) as rpc:
        check = rpc.channel.unary_unary("/grpc.health.v1.Health/Check")
        told = rpc.channel.unary_stream("/grpc.health.v1.Health/Watch")(asked("")).__aiter__()
        for words, expected in (
            ("", SERVING),
            ("the store was not heard of", NOT_SERVING),
            ("", SERVING),
        ):
            unavailable_reason[0] = words
            assert status(await asyncio.wait_for(anext(told), 20)) == expected
            assert status(await check(asked(A2A[0]))) == expected


# -- reflection --------------------------------------------------------------------------------


@pytest.fixture(params=["v1", "v1alpha"])
def reflect(request, channel):
    """Asks one question, in either version of the service."""
    path = f"/grpc.reflection.{request.param}.ServerReflection/ServerReflectionInfo"

    async def ask(**question):
        made = ServerReflectionRequest(**question)
        call = channel.stream_stream(path)(iter([made.SerializeToString()]))
        (data,) = [each async for each in call]
        answer = ServerReflectionResponse.FromString(data)
        assert answer.original_request == made
        return answer

    return ask


async def test_every_service_is_listed(reflect):
    answer = await reflect(list_services="*")
    assert [each.name for each in answer.list_services_response.service] == [
        "a2a.v1.A2AService",
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
        "lf.a2a.v1.A2AService",
    ]


@pytest.mark.parametrize(
    "symbol",
    ["lf.a2a.v1.A2AService", "a2a.v1.A2AService", "lf.a2a.v1.Task", "grpc.health.v1.Health"],
)
async def test_a_symbol_is_described_with_all_that_it_needs(reflect, symbol):
    answer = await reflect(file_containing_symbol=symbol)
    files = [
        FileDescriptorProto.FromString(data)
        for data in answer.file_descriptor_response.file_descriptor_proto
    ]
    pool = DescriptorPool()
    for file in reversed(files):  # what is needed comes after what needs it
        pool.Add(file)
    found = pool.FindFileContainingSymbol(symbol)
    assert found.name == files[0].name
    again = await reflect(file_by_filename=files[0].name)
    assert again.file_descriptor_response == answer.file_descriptor_response


@pytest.mark.parametrize(
    ("question", "status"),
    [
        ({"file_containing_symbol": "no.Such"}, grpc.StatusCode.NOT_FOUND),
        ({"file_by_filename": "no_such.proto"}, grpc.StatusCode.NOT_FOUND),
        ({"all_extension_numbers_of_type": "no.Such"}, grpc.StatusCode.NOT_FOUND),
        ({"file_containing_extension": {}}, grpc.StatusCode.NOT_FOUND),
        ({}, grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
async def test_a_question_without_an_answer_is_told_so(reflect, question, status):
    answer = await reflect(**question)
    assert answer.error_response.error_code == status.value[0]


async def test_a_message_has_no_extensions(reflect):
    answer = await reflect(all_extension_numbers_of_type="lf.a2a.v1.Task")
    assert answer.all_extension_numbers_response.base_type_name == "lf.a2a.v1.Task"


async def test_bytes_that_are_no_question_are_refused(channel):
    path = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
    (data,) = [each async for each in channel.stream_stream(path)(iter([b"\xff"]))]
    answer = ServerReflectionResponse.FromString(data)
    assert answer.error_response.error_code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
