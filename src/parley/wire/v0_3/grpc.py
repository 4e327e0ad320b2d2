"""gRPC in version 0.3: the messages of its proto (0.3 §3.2.2)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from parley.model.cards import AgentCard
from parley.model.errors import A2AError, FieldViolation
from parley.model.operations import BY_NAME, Empty, Operation, SendMessageRequest, StreamResponse
from parley.model.service import StreamItem
from parley.model.struct import A2AStruct, InvalidField
from parley.model.tasks import Event
from parley.wire.json import protojson
from parley.wire.json.problems import InvalidValue, logging_problems
from parley.wire.json.syntax import Bytes
from parley.wire.protobuf.errors import unencodable_answer
from parley.wire.protobuf.messages import Messages, Schema, check_depth, check_parts
from parley.wire.protobuf.structs import fill, members_of
from parley.wire.v0_3 import proto, values
from parley.wire.v0_3.json import invalid_answer
from parley.wire.v0_3.operations import PROTO_NAMES, with_wire_names
from parley.wire.v0_3.proto import expects_base64_text

SCHEMA = Schema(
    package="a2a.v1",
    messages={
        "SendMessageConfiguration": (
            "1 accepted_output_modes string[], 2 push_notification PushNotificationConfig, "
            "3 history_length int32, 4 blocking bool"
        ),
        "Task": (
            "1 id string, 2 context_id string, 3 status TaskStatus, 4 artifacts Artifact[], "
            "5 history Message[], 6 metadata Struct"
        ),
        "TaskStatus": "1 state TaskState, 2 update@message Message, 3 timestamp Timestamp",
        "Part": (
            "1 text string |part, 2 file FilePart |part, 3 data DataPart |part, 4 metadata Struct"
        ),
        "FilePart": (
            "1 file_with_uri string |file, 2 file_with_bytes bytes |file, 3 mime_type string, "
            "4 name string"
        ),
        "DataPart": "1 data Struct",
        "Message": (
            "1 message_id string, 2 context_id string, 3 task_id string, 4 role Role, "
            "5 content Part[], 6 metadata Struct, 7 extensions string[]"
        ),
        "Artifact": (
            "1 artifact_id string, 3 name string, 4 description string, 5 parts Part[], "
            "6 metadata Struct, 7 extensions string[]"
        ),
        "TaskStatusUpdateEvent": (
            "1 task_id string, 2 context_id string, 3 status TaskStatus, 4 final bool, "
            "5 metadata Struct"
        ),
        "TaskArtifactUpdateEvent": (
            "1 task_id string, 2 context_id string, 3 artifact Artifact, 4 append bool, "
            "5 last_chunk bool, 6 metadata Struct"
        ),
        "PushNotificationConfig": (
            "1 id string, 2 url string, 3 token string, 4 authentication AuthenticationInfo"
        ),
        "AuthenticationInfo": "1 schemes string[], 2 credentials string",
        "AgentInterface": "1 url string, 2 transport string",
        "AgentCard": (
            "16 protocol_version string, 1 name string, 2 description string, 3 url string, "
            "14 preferred_transport string, 15 additional_interfaces AgentInterface[], "
            "4 provider AgentProvider, 5 version string, 6 documentation_url string, "
            "7 capabilities AgentCapabilities, 8 security_schemes SecurityScheme{}, "
            "9 security Security[], 10 default_input_modes string[], "
            "11 default_output_modes string[], 12 skills AgentSkill[], "
            "13 supports_authenticated_extended_card bool, 17 signatures AgentCardSignature[], "
            "18 icon_url string"
        ),
        "AgentProvider": "1 url string, 2 organization string",
        "AgentCapabilities": (
            "1 streaming bool, 2 push_notifications bool, 3 extensions AgentExtension[]"
        ),
        "AgentExtension": "1 uri string, 2 description string, 3 required bool, 4 params Struct",
        "AgentSkill": (
            "1 id string, 2 name string, 3 description string, 4 tags string[], "
            "5 examples string[], 6 input_modes string[], 7 output_modes string[], "
            "8 security Security[]"
        ),
        "AgentCardSignature": "1 protected string, 2 signature string, 3 header Struct",
        "TaskPushNotificationConfig": (
            "1 name string, 2 push_notification_config PushNotificationConfig"
        ),
        "StringList": "1 list string[]",
        "Security": "1 schemes StringList{}",
        "SecurityScheme": (
            "1 api_key_security_scheme APIKeySecurityScheme |scheme, "
            "2 http_auth_security_scheme HTTPAuthSecurityScheme |scheme, "
            "3 oauth2_security_scheme OAuth2SecurityScheme |scheme, "
            "4 open_id_connect_security_scheme OpenIdConnectSecurityScheme |scheme, "
            "5 mtls_security_scheme MutualTlsSecurityScheme |scheme"
        ),
        "APIKeySecurityScheme": "1 description string, 2 location string, 3 name string",
        "HTTPAuthSecurityScheme": "1 description string, 2 scheme string, 3 bearer_format string",
        "OAuth2SecurityScheme": (
            "1 description string, 2 flows OAuthFlows, 3 oauth2_metadata_url string"
        ),
        "OpenIdConnectSecurityScheme": "1 description string, 2 open_id_connect_url string",
        "MutualTlsSecurityScheme": "1 description string",
        "OAuthFlows": (
            "1 authorization_code AuthorizationCodeOAuthFlow |flow, "
            "2 client_credentials ClientCredentialsOAuthFlow |flow, "
            "3 implicit ImplicitOAuthFlow |flow, 4 password PasswordOAuthFlow |flow"
        ),
        "AuthorizationCodeOAuthFlow": (
            "1 authorization_url string, 2 token_url string, 3 refresh_url string, "
            "4 scopes string{}"
        ),
        "ClientCredentialsOAuthFlow": "1 token_url string, 2 refresh_url string, 3 scopes string{}",
        "ImplicitOAuthFlow": "1 authorization_url string, 2 refresh_url string, 3 scopes string{}",
        "PasswordOAuthFlow": "1 token_url string, 2 refresh_url string, 3 scopes string{}",
        "SendMessageRequest": (
            "1 request@message Message, 2 configuration SendMessageConfiguration, 3 metadata Struct"
        ),
        "GetTaskRequest": "1 name string, 2 history_length int32",
        "CancelTaskRequest": "1 name string",
        "GetTaskPushNotificationConfigRequest": "1 name string",
        "DeleteTaskPushNotificationConfigRequest": "1 name string",
        "CreateTaskPushNotificationConfigRequest": (
            "1 parent string, 2 config_id string, 3 config TaskPushNotificationConfig"
        ),
        "TaskSubscriptionRequest": "1 name string",
        "ListTaskPushNotificationConfigRequest": (
            "1 parent string, 2 page_size int32, 3 page_token string"
        ),
        "GetAgentCardRequest": "",
        "SendMessageResponse": "1 task Task |payload, 2 msg@message Message |payload",
        "StreamResponse": (
            "1 task Task |payload, 2 msg@message Message |payload, "
            "3 status_update TaskStatusUpdateEvent |payload, "
            "4 artifact_update TaskArtifactUpdateEvent |payload"
        ),
        "ListTaskPushNotificationConfigResponse": (
            "1 configs TaskPushNotificationConfig[], 2 next_page_token string"
        ),
    },
    enums={
        "TaskState": (
            "TASK_STATE_UNSPECIFIED",
            "TASK_STATE_SUBMITTED",
            "TASK_STATE_WORKING",
            "TASK_STATE_COMPLETED",
            "TASK_STATE_FAILED",
            "TASK_STATE_CANCELLED",
            "TASK_STATE_INPUT_REQUIRED",
            "TASK_STATE_REJECTED",
            "TASK_STATE_AUTH_REQUIRED",
        ),
        "Role": ("ROLE_UNSPECIFIED", "ROLE_USER", "ROLE_AGENT"),
    },
    services={
        "A2AService": {
            "SendMessage": ("SendMessageRequest", "SendMessageResponse"),
            "SendStreamingMessage": ("SendMessageRequest", "StreamResponse[]"),
            "GetTask": ("GetTaskRequest", "Task"),
            "CancelTask": ("CancelTaskRequest", "Task"),
            "TaskSubscription": ("TaskSubscriptionRequest", "StreamResponse[]"),
            "CreateTaskPushNotificationConfig": (
                "CreateTaskPushNotificationConfigRequest",
                "TaskPushNotificationConfig",
            ),
            "GetTaskPushNotificationConfig": (
                "GetTaskPushNotificationConfigRequest",
                "TaskPushNotificationConfig",
            ),
            "ListTaskPushNotificationConfig": (
                "ListTaskPushNotificationConfigRequest",
                "ListTaskPushNotificationConfigResponse",
            ),
            "GetAgentCard": ("GetAgentCardRequest", "AgentCard"),
            "DeleteTaskPushNotificationConfig": (
                "DeleteTaskPushNotificationConfigRequest",
                "Empty",
            ),
        }
    },
)


_SERVICE = "A2AService"
_EVENT = "StreamResponse"


class Grpc:
    """Messages of gRPC (``GrpcCodec``), translated from and to their JSON (``proto``)."""

    takes_json = False
    service = f"{SCHEMA.package}.{_SERVICE}"
    names: Mapping[str, str] = {
        name: rpc for name, rpc in PROTO_NAMES.items() if rpc in SCHEMA.services[_SERVICE]
    }
    methods: Mapping[str, Operation] = {rpc: BY_NAME[name] for name, rpc in names.items()}

    def __init__(self, messages: Messages | None = None, *, bytes_as_text: bool = False) -> None:
        self._messages = messages or Messages(SCHEMA)
        self._bytes_as_text = bytes_as_text
        self.pool = self._messages.pool

    @cached_property
    def _for_text_peers(self) -> Grpc:
        return Grpc(self._messages, bytes_as_text=True)

    def for_peer(self, peer: str) -> Grpc:
        """Return the codec for a peer: most official SDKs expect files as base64 text.

        Our own client puts our name before that of its library.
        """
        return self._for_text_peers if expects_base64_text(peer) else self

    def read_request(
        self, operation: Operation, data: Bytes, *, max_depth: int = 100, max_parts: int = 1000
    ) -> Any:
        """Read the message of a request."""
        message = self._messages.parse(self._types(operation)[0], data)
        if operation.request is SendMessageRequest:
            check_parts(message.request.content, max_parts, "message.content")
        try:
            request = proto.read_request(operation, members_of(message))
        except InvalidValue as wrong:
            protojson.refuse(wrong.violations)
        check_depth(request, max_depth)
        return request

    def write_request(self, operation: Operation, request: A2AStruct) -> bytes:
        """Write the message of a request."""
        try:
            return self._write(self._types(operation)[0], proto.write_request(operation, request))
        except InvalidValue as wrong:
            protojson.refuse(wrong.violations)
        except InvalidField as wrong:
            protojson.refuse([FieldViolation(wrong.field, wrong.description)])

    def with_wire_names(self, error: A2AError) -> A2AError:
        """Return an error with the names of fields in the proto."""
        return with_wire_names(error, proto=True)

    def write_result(self, operation: Operation, answer: Any) -> bytes:
        """Write the answer to an operation."""
        return self._write_answer(self._types(operation)[1], proto.write_result(operation, answer))

    def read_result(self, operation: Operation, data: Bytes) -> Any:
        """Read the answer to an operation."""
        if operation.response is Empty:
            return Empty()
        try:
            with logging_problems(asked := f"the answer to {operation.name}"):
                members = self._read(self._types(operation)[1], data)
        except A2AError as error:
            raise invalid_answer(asked, operation.response, error) from None
        if operation.response is AgentCard:
            members.setdefault("url", "")  # protobuf leaves an empty one out
        return proto.read_result(operation, members)

    def write_event(self, item: StreamItem) -> bytes:
        """Write one event of a stream."""
        return self._write_answer(_EVENT, proto.write_event(item.event))

    def read_event(self, data: Bytes) -> Event:
        """Read one event of a stream."""
        try:
            with logging_problems("an event of a stream"):
                members = self._read(_EVENT, data)
        except A2AError as error:
            raise invalid_answer("an event of a stream", StreamResponse, error) from None
        return proto.read_event(members)

    def ends_stream(self, event: Event) -> bool:
        """Return whether the event is a final one (0.3 §7.2.2)."""
        return values.ends_stream(event)

    def _types(self, operation: Operation) -> tuple[str, str]:
        """Return the request and response messages of an operation."""
        request, response = SCHEMA.services[_SERVICE][self.names[operation.name]]
        return request, response.removesuffix("[]")

    def _read(self, name: str, data: Bytes) -> proto.Members:
        return members_of(self._messages.parse(name, data), tolerant=True)

    def _write(self, name: str, members: proto.Members) -> bytes:
        message = self._messages[name]()
        fill(message, members, bytes_as_text=self._bytes_as_text)
        return message.SerializeToString()  # type: ignore[no-any-return]

    def _write_answer(self, name: str, members: proto.Members) -> bytes:
        try:
            return self._write(name, members)
        except InvalidValue as wrong:
            raise unencodable_answer(wrong) from None
