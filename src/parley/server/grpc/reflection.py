"""gRPC server reflection: the services and their messages, for tools."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from typing import Any

import grpc
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from parley.model.errors import InvalidRequestError
from parley.server.grpc.limits import GrpcLimits
from parley.server.grpc.restricted import GrpcGate
from parley.wire.protobuf.errors import CODES
from parley.wire.protobuf.messages import Messages, Schema

# The two versions differ only in name; tools ask for either.
VERSIONS = ("v1", "v1alpha")
SERVICES = tuple(f"grpc.reflection.{version}.ServerReflection" for version in VERSIONS)


def _schema(version: str) -> Schema:
    return Schema(
        package=f"grpc.reflection.{version}",
        messages={
            "ServerReflectionRequest": (
                "1 host string, 3 file_by_filename string |message_request, "
                "4 file_containing_symbol string |message_request, "
                "5 file_containing_extension ExtensionRequest |message_request, "
                "6 all_extension_numbers_of_type string |message_request, "
                "7 list_services string |message_request"
            ),
            "ExtensionRequest": "1 containing_type string, 2 extension_number int32",
            "ServerReflectionResponse": (
                "1 valid_host string, 2 original_request ServerReflectionRequest, "
                "4 file_descriptor_response FileDescriptorResponse |message_response, "
                "5 all_extension_numbers_response ExtensionNumberResponse |message_response, "
                "6 list_services_response ListServiceResponse |message_response, "
                "7 error_response ErrorResponse |message_response"
            ),
            "FileDescriptorResponse": "1 file_descriptor_proto bytes[]",
            "ExtensionNumberResponse": "1 base_type_name string, 2 extension_number int32[]",
            "ListServiceResponse": "1 service ServiceResponse[]",
            "ServiceResponse": "1 name string",
            "ErrorResponse": "1 error_code int32, 2 error_message string",
        },
        services={
            "ServerReflection": {
                "ServerReflectionInfo": ("ServerReflectionRequest[]", "ServerReflectionResponse[]")
            }
        },
    )


class Reflection:
    """Describes ``services``, whose descriptors are in ``pools``, and itself."""

    def __init__(
        self, services: Collection[str], pools: Sequence[Any], limits: GrpcLimits, gate: GrpcGate
    ) -> None:
        self._gate = gate
        self._limits = limits
        self._messages = [Messages(_schema(version)) for version in VERSIONS]
        self._pools = [*pools, *(messages.pool for messages in self._messages)]
        self._services = (*services, *SERVICES)

    def handlers(self) -> tuple[Any, ...]:
        """Return the service, in each of its versions."""
        return tuple(
            grpc.method_handlers_generic_handler(
                service,
                {
                    "ServerReflectionInfo": grpc.stream_stream_rpc_method_handler(
                        _answering(self, messages, self._limits, self._gate)
                    )
                },
            )
            for service, messages in zip(SERVICES, self._messages, strict=True)
        )

    def answer(self, messages: Messages, data: bytes) -> bytes:
        """Return the answer to one question."""
        response = messages["ServerReflectionResponse"]()
        try:
            request = messages.parse("ServerReflectionRequest", data)
        except InvalidRequestError as error:
            _set_error(response, "INVALID_ARGUMENT", error.message)
            return response.SerializeToString()  # type: ignore[no-any-return]
        response.valid_host = request.host
        response.original_request.CopyFrom(request)
        match request.WhichOneof("message_request"):
            case "list_services":
                for name in self._services:
                    response.list_services_response.service.add(name=name)
            case "file_by_filename":
                self._describe(response, "FindFileByName", request.file_by_filename)
            case "file_containing_symbol":
                symbol = request.file_containing_symbol
                self._describe(response, "FindFileContainingSymbol", symbol)
            case "all_extension_numbers_of_type":
                name = request.all_extension_numbers_of_type
                if self._file("FindMessageTypeByName", name) is None:
                    _set_error(response, "NOT_FOUND", f"there is no {name[:100]} here")
                else:
                    response.all_extension_numbers_response.base_type_name = name
            case "file_containing_extension":
                _set_error(response, "NOT_FOUND", "there are no extensions here")
            case _:
                _set_error(response, "INVALID_ARGUMENT", "the request asks for nothing")
        return response.SerializeToString()  # type: ignore[no-any-return]

    def _describe(self, response: Any, method: str, name: str) -> None:
        file = self._file(method, name)
        if file is None:
            _set_error(response, "NOT_FOUND", f"there is no {name[:100]} here")
            return
        # With its dependencies, which saves the client a request for each.
        files, pending = {}, [file]
        while pending:
            each = pending.pop()
            if each.name not in files:
                described = FileDescriptorProto()
                each.CopyToProto(described)
                files[each.name] = described.SerializeToString()
                pending += each.dependencies
        response.file_descriptor_response.file_descriptor_proto.extend(files.values())

    def _file(self, method: str, name: str) -> Any:
        for pool in self._pools:
            try:
                return getattr(pool, method)(name)
            except KeyError:
                continue
        return None


def _answering(
    reflection: Reflection, messages: Messages, limits: GrpcLimits, gate: GrpcGate
) -> Any:
    async def info(requests: object, context: Any) -> AsyncIterator[bytes]:
        await gate.admit(context)
        while (data := await limits.receive_or_abort(context)) is not None:
            yield reflection.answer(messages, data)

    return info


def _set_error(response: Any, status: str, words: str) -> None:
    response.error_response.error_code = CODES[status]
    response.error_response.error_message = words
