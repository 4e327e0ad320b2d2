"""gRPC in version 1.0 (specification §10)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parley.model.errors import (
    A2AError,
    FieldViolation,
    InvalidAgentResponseError,
    InvalidRequestError,
    an,
)
from parley.model.operations import (
    BY_NAME,
    Empty,
    Operation,
    SendMessageRequest,
    SendMessageResponse,
    StreamResponse,
)
from parley.model.service import StreamItem
from parley.model.struct import A2AStruct
from parley.model.tasks import Event
from parley.wire.json import protojson
from parley.wire.json.problems import InvalidValue, logging_problems
from parley.wire.json.syntax import Bytes
from parley.wire.protobuf.errors import unencodable_answer
from parley.wire.protobuf.messages import Messages, Schema, check_depth, check_parts
from parley.wire.protobuf.structs import Structs

SCHEMA = Schema(
    package="lf.a2a.v1",
    messages={
        "SendMessageConfiguration": (
            "1 accepted_output_modes string[], "
            "2 task_push_notification_config TaskPushNotificationConfig, "
            "3 history_length int32?, 4 return_immediately bool"
        ),
        "Task": (
            "1 id string, 2 context_id string, 3 status TaskStatus, 4 artifacts Artifact[], "
            "5 history Message[], 6 metadata Struct"
        ),
        "TaskStatus": "1 state TaskState, 2 message Message, 3 timestamp Timestamp",
        "Part": (
            "1 text string |content, 2 raw bytes |content, 3 url string |content, "
            "4 data Value |content, 5 metadata Struct, 6 filename string, 7 media_type string"
        ),
        "Message": (
            "1 message_id string, 2 context_id string, 3 task_id string, 4 role Role, "
            "5 parts Part[], 6 metadata Struct, 7 extensions string[], "
            "8 reference_task_ids string[]"
        ),
        "Artifact": (
            "1 artifact_id string, 2 name string, 3 description string, 4 parts Part[], "
            "5 metadata Struct, 6 extensions string[]"
        ),
        "TaskStatusUpdateEvent": (
            "1 task_id string, 2 context_id string, 3 status TaskStatus, 4 metadata Struct"
        ),
        "TaskArtifactUpdateEvent": (
            "1 task_id string, 2 context_id string, 3 artifact Artifact, 4 append bool, "
            "5 last_chunk bool, 6 metadata Struct"
        ),
        "AuthenticationInfo": "1 scheme string, 2 credentials string",
        "AgentInterface": (
            "1 url string, 2 protocol_binding string, 3 tenant string, 4 protocol_version string"
        ),
        "AgentCard": (
            "1 name string, 2 description string, 3 supported_interfaces AgentInterface[], "
            "4 provider AgentProvider, 5 version string, 6 documentation_url string?, "
            "7 capabilities AgentCapabilities, 8 security_schemes SecurityScheme{}, "
            "9 security_requirements SecurityRequirement[], 10 default_input_modes string[], "
            "11 default_output_modes string[], 12 skills AgentSkill[], "
            "13 signatures AgentCardSignature[], 14 icon_url string?"
        ),
        "AgentProvider": "1 url string, 2 organization string",
        "AgentCapabilities": (
            "1 streaming bool?, 2 push_notifications bool?, 3 extensions AgentExtension[], "
            "4 extended_agent_card bool?"
        ),
        "AgentExtension": "1 uri string, 2 description string, 3 required bool, 4 params Struct",
        "AgentSkill": (
            "1 id string, 2 name string, 3 description string, 4 tags string[], "
            "5 examples string[], 6 input_modes string[], 7 output_modes string[], "
            "8 security_requirements SecurityRequirement[]"
        ),
        "AgentCardSignature": "1 protected string, 2 signature string, 3 header Struct",
        "TaskPushNotificationConfig": (
            "1 tenant string, 2 id string, 3 task_id string, 4 url string, 5 token string, "
            "6 authentication AuthenticationInfo"
        ),
        "StringList": "1 list string[]",
        "SecurityRequirement": "1 schemes StringList{}",
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
            "3 implicit ImplicitOAuthFlow |flow, 4 password PasswordOAuthFlow |flow, "
            "5 device_code DeviceCodeOAuthFlow |flow"
        ),
        "AuthorizationCodeOAuthFlow": (
            "1 authorization_url string, 2 token_url string, 3 refresh_url string, "
            "4 scopes string{}, 5 pkce_required bool"
        ),
        "ClientCredentialsOAuthFlow": "1 token_url string, 2 refresh_url string, 3 scopes string{}",
        "ImplicitOAuthFlow": "1 authorization_url string, 2 refresh_url string, 3 scopes string{}",
        "PasswordOAuthFlow": "1 token_url string, 2 refresh_url string, 3 scopes string{}",
        "DeviceCodeOAuthFlow": (
            "1 device_authorization_url string, 2 token_url string, 3 refresh_url string, "
            "4 scopes string{}"
        ),
        "SendMessageRequest": (
            "1 tenant string, 2 message Message, 3 configuration SendMessageConfiguration, "
            "4 metadata Struct"
        ),
        "GetTaskRequest": "1 tenant string, 2 id string, 3 history_length int32?",
        "ListTasksRequest": (
            "1 tenant string, 2 context_id string, 3 status TaskState, 4 page_size int32?, "
            "5 page_token string, 6 history_length int32?, 7 status_timestamp_after Timestamp, "
            "8 include_artifacts bool?"
        ),
        "ListTasksResponse": (
            "1 tasks Task[], 2 next_page_token string, 3 page_size int32, 4 total_size int32"
        ),
        "CancelTaskRequest": "1 tenant string, 2 id string, 3 metadata Struct",
        "GetTaskPushNotificationConfigRequest": "1 tenant string, 2 task_id string, 3 id string",
        "DeleteTaskPushNotificationConfigRequest": "1 tenant string, 2 task_id string, 3 id string",
        "SubscribeToTaskRequest": "1 tenant string, 2 id string",
        "ListTaskPushNotificationConfigsRequest": (
            "4 tenant string, 1 task_id string, 2 page_size int32, 3 page_token string"
        ),
        "GetExtendedAgentCardRequest": "1 tenant string",
        "SendMessageResponse": "1 task Task |payload, 2 message Message |payload",
        "StreamResponse": (
            "1 task Task |payload, 2 message Message |payload, "
            "3 status_update TaskStatusUpdateEvent |payload, "
            "4 artifact_update TaskArtifactUpdateEvent |payload"
        ),
        "ListTaskPushNotificationConfigsResponse": (
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
            "TASK_STATE_CANCELED",
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
            "ListTasks": ("ListTasksRequest", "ListTasksResponse"),
            "CancelTask": ("CancelTaskRequest", "Task"),
            "SubscribeToTask": ("SubscribeToTaskRequest", "StreamResponse[]"),
            "CreateTaskPushNotificationConfig": (
                "TaskPushNotificationConfig",
                "TaskPushNotificationConfig",
            ),
            "GetTaskPushNotificationConfig": (
                "GetTaskPushNotificationConfigRequest",
                "TaskPushNotificationConfig",
            ),
            "ListTaskPushNotificationConfigs": (
                "ListTaskPushNotificationConfigsRequest",
                "ListTaskPushNotificationConfigsResponse",
            ),
            "GetExtendedAgentCard": ("GetExtendedAgentCardRequest", "AgentCard"),
            "DeleteTaskPushNotificationConfig": (
                "DeleteTaskPushNotificationConfigRequest",
                "Empty",
            ),
        }
    },
)


class Grpc:
    """Messages of gRPC (``GrpcCodec``), which have the fields of the data model."""

    takes_json = False
    service = f"{SCHEMA.package}.A2AService"
    methods: Mapping[str, Operation] = BY_NAME
    names: Mapping[str, str] = {name: name for name in BY_NAME}

    def __init__(self) -> None:
        self._messages = Messages(SCHEMA)
        self._structs = Structs(self._messages)
        self.pool = self._messages.pool

    def for_peer(self, peer: str) -> Grpc:
        """Return this codec: all peers read the same."""
        return self

    def read_request(
        self, operation: Operation, data: Bytes, *, max_depth: int = 100, max_parts: int = 1000
    ) -> Any:
        """Read the message of a request."""
        kind = operation.request
        message = self._messages.parse(kind.__name__, data)
        if kind is SendMessageRequest:
            check_parts(message.message.parts, max_parts)
        try:
            request = self._structs.read(message, kind)
        except InvalidValue as wrong:
            protojson.refuse(wrong.violations)
        check_depth(request, max_depth)
        return request

    def write_request(self, operation: Operation, request: A2AStruct) -> bytes:
        """Write the message of a request."""
        try:
            return self._structs.encode(request)
        except InvalidValue as wrong:
            protojson.refuse(wrong.violations)

    def with_wire_names(self, error: A2AError) -> A2AError:
        """Return the error unchanged: its fields have the names of the data model."""
        return error

    def write_result(self, operation: Operation, answer: Any) -> bytes:
        """Write the answer to an operation."""
        if operation.response is SendMessageResponse:
            answer = SendMessageResponse.of(answer)
        return self._write(answer)

    def read_result(self, operation: Operation, data: Bytes) -> Any:
        """Read the answer to an operation."""
        if operation.response is Empty:
            return Empty()
        answer = self._read(operation.name, data, operation.response)
        return answer.payload if isinstance(answer, SendMessageResponse) else answer

    def write_event(self, item: StreamItem) -> bytes:
        """Write one event of a stream (§3.2.3)."""
        return self._write(StreamResponse.of(item.event))

    def read_event(self, data: Bytes) -> Event:
        """Read one event of a stream."""
        response: StreamResponse = self._read("a stream", data, StreamResponse)
        return response.payload

    def ends_stream(self, event: Event) -> bool:
        """Return false: streams of this version end when their service ends them."""
        return False

    def _write(self, value: A2AStruct) -> bytes:
        try:
            return self._structs.encode(value)
        except InvalidValue as wrong:
            raise unencodable_answer(wrong) from None

    def _read(self, asked: str, data: Bytes, kind: type[A2AStruct]) -> Any:
        try:
            message = self._messages.parse(kind.__name__, data)
            with logging_problems(f"the answer to {asked}"):
                return self._structs.read(message, kind, tolerant=True)
        except InvalidValue as wrong:
            violations = tuple(FieldViolation(*problem) for problem in wrong.problems)
            field, description = violations[0]
            words = f"{field}: {description}" if field else description
        except InvalidRequestError as error:
            violations, words = (), error.message
        raise InvalidAgentResponseError(
            f"the answer to {asked} is not {an(kind.__name__)}: {words}", violations=violations
        )
