"""Real messages to begin with: what every operation asks and is answered, in every codec.

Each message type has a value with nothing but what it must have and values with everything that it
can have; what others write differently stands at the end, byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from msgspec import inspect
from msgspec.structs import replace

from parley.model.cards import (
    AgentCard,
    AgentInterface,
    OAuth2SecurityScheme,
    OAuthFlows,
    SecurityScheme,
)
from parley.model.operations import (
    OPERATIONS,
    Operation,
    SendMessageResponse,
    StreamResponse,
    TaskPushNotificationConfig,
)
from parley.model.parts import Role
from parley.model.struct import A2AStruct, Timestamp
from parley.model.tasks import TaskState
from tests.contract.saying import PARTS
from tests.kit.strategies import MESSAGES, ONE_OF

MOMENT = Timestamp.from_milliseconds(1_790_000_000_123)
OBJECT = {"count": 3, "list": [1, 2.5, None, "x"], "deep": {"a": {"b": [[]]}}}
_DEEPEST = 7


def least(kind: type[A2AStruct]) -> Any:
    """Return the value of a message type that says the least."""
    member = ONE_OF.get(kind, ())[:1]
    given = [f for f in _fields(kind) if f.required or f.name in member]
    return kind(**{f.name: _of(f, False, 0) for f in given})


def full(kind: type[A2AStruct], member: str = "", depth: int = 0) -> Any:
    """Return a value that says all that it can; of a oneof, ``member``."""
    one_of = ONE_OF.get(kind, ())
    member = member or (one_of[0] if one_of else "")
    given = {
        f.name: _of(f, True, depth + 1)
        for f in _fields(kind)
        if (f.name not in one_of or f.name == member) and (f.required or depth < _DEEPEST)
    }
    return kind(**given)


@cache
def values_of(kind: type[A2AStruct]) -> tuple[Any, ...]:
    """Return some values of a message type."""
    members = ONE_OF.get(kind, ("",))
    return tuple([least(kind), *(full(kind, member) for member in members)])


@cache
def _fields(kind: type[A2AStruct]) -> tuple[inspect.Field, ...]:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    return info.fields


def _of(field: inspect.Field, all_of_it: bool, depth: int) -> Any:
    if field.name == "parts" and all_of_it:
        return PARTS
    return _value(field.type, field.name, all_of_it, depth)


def _value(info: inspect.Type, name: str, all_of_it: bool, depth: int) -> Any:
    match info:
        case inspect.StructType(cls=cls):
            return full(cls, depth=depth) if all_of_it else least(cls)
        case inspect.UnionType(types=types):
            (one,) = [case for case in types if not isinstance(case, inspect.NoneType)]
            return _value(one, name, all_of_it, depth)
        case inspect.VarTupleType(item_type=item, min_length=size):
            return (_value(item, name, all_of_it, depth),) if all_of_it or size else ()
        case inspect.DictType(value_type=inspect.AnyType()):
            return OBJECT if all_of_it else {}
        case inspect.DictType(value_type=item):
            return {"k": _value(item, name, all_of_it, depth)} if all_of_it else {}
        case inspect.EnumType(cls=cls):
            return {TaskState: TaskState.WORKING, Role: Role.USER}[cls]
        case inspect.StrType():
            return "https://agent.example/x" if name.endswith("url") else name[:4]
        case inspect.CustomType():
            return MOMENT
        case inspect.IntType():
            return 1
        case inspect.BoolType():
            return True
        case inspect.BytesType():
            return b"\x00\xff"
    return OBJECT


def requests_of(operation: Operation) -> Iterator[Any]:
    """Yield requests for an operation."""
    for request in values_of(operation.request):
        if isinstance(request, TaskPushNotificationConfig) and not request.task_id:
            request = replace(request, task_id="t")
        yield request


def answers_of(operation: Operation) -> Iterator[Any]:
    """Yield answers to an operation, and events of a stream, out of their wrappers."""
    for answer in values_of(operation.response):
        if isinstance(answer, SendMessageResponse | StreamResponse):
            yield answer.payload
        elif isinstance(answer, AgentCard):
            yield from cards()
        else:
            yield answer


@cache
def cards() -> tuple[AgentCard, ...]:
    """Return cards, with every kind of security scheme and with interfaces of both versions."""
    kinds = [*values_of(SecurityScheme), *map(_of_flow, ONE_OF[OAuthFlows])]
    card = full(AgentCard)
    offered = tuple(
        AgentInterface(url=url, protocol_binding=binding, protocol_version=version)
        for url, binding, version in (
            ("https://agent.example/", "JSONRPC", "1.0"),
            ("agent.example:443", "GRPC", "1.0"),
            ("https://agent.example/", "JSONRPC", "0.3"),
            ("https://agent.example/", "HTTP+JSON", "0.3.0"),
        )
    )
    schemes = {f"s{n}": scheme for n, scheme in enumerate(kinds)}
    return (
        least(AgentCard),
        replace(card, supported_interfaces=offered),
        replace(card, supported_interfaces=offered, security_schemes=schemes),
    )


def _of_flow(member: str) -> SecurityScheme:
    scheme = replace(full(OAuth2SecurityScheme), flows=full(OAuthFlows, member))
    return SecurityScheme(oauth2_security_scheme=scheme)


def words() -> list[bytes]:
    """Return the names and values that messages are made of."""
    found: dict[str, None] = {}
    for kind in MESSAGES.values():
        for field in _fields(kind):
            found.update(dict.fromkeys((field.encode_name, field.name)))
    found.update(dict.fromkeys(state.value for state in TaskState))
    found.update(dict.fromkeys(role.value for role in Role))
    found.update(dict.fromkeys(operation.name for operation in OPERATIONS))
    found.update(dict.fromkeys(_OF_0_3.split()))
    return [word.encode() for word in found]


_OF_0_3 = """
kind type content request push_notification push_notification_config pushNotificationConfig
blocking final update msg status-update artifact-update message task text file data bytes uri
mimeType name parent config_id configId fileWithBytes fileWithUri submitted input-required canceled
TASK_STATE_CANCELLED user agent schemes sessionId acceptedOutputModes url preferredTransport
additionalInterfaces protocolVersion transport security in flows
supportsAuthenticatedExtendedCard error code details @type reason domain metadata fieldViolations
retryDelay type.googleapis.com/google.rpc.ErrorInfo type.googleapis.com/google.rpc.BadRequest
type.googleapis.com/google.rpc.RetryInfo a2a-protocol.org jsonrpc id method params result 2.0
message/send message/stream tasks/get tasks/cancel tasks/resubscribe tasks/send tasks/list
"""


# What is sent by others, in their own spelling: a line that says what is asked, and the body.
OTHERS: dict[str, tuple[bytes, ...]] = {
    "1.0": (
        b'SendMessage\n{"message":{"message_id":"m","role":1,"parts":[{"text":"hi","metadata":null}],'
        b'"context_id":null},"configuration":{"history_length":"3","accepted_output_modes":[]}}',
        b'ListTasks\n{"pageSize":10.0,"statusTimestampAfter":"2026-01-01T02:00:00.123456+02:00"}',
        b'GetTask\n{"id":"t","historyLength":null,"x":{"y":[]}}',
    ),
    "0.3": (
        b'message/send\n{"message":{"kind":"message","messageId":"m","role":"user","parts":[{"kind":'
        b'"text","text":"hi"},{"kind":"file","file":{"bytes":"AP8=","mimeType":"image/png"}},'
        b'{"kind":"data","data":{"a":1}}]},"configuration":{"acceptedOutputModes":["text/plain"],'
        b'"blocking":true,"pushNotificationConfig":{"url":"https://x.example","authentication":'
        b'{"schemes":["Bearer"],"credentials":"c"}}},"metadata":{}}',
        b'tasks/send\n{"id":"t","sessionId":"c","message":{"role":"user","parts":[{"type":"text",'
        b'"text":"hi"}]},"pushNotification":{"url":"https://x.example"},"historyLength":1}',
        b'message/stream\n{"message":{"messageId":"m","role":"user","parts":[{"kind":"data","data":'
        b'{"value":5},"metadata":{"data_part_compat":true}}],"taskId":"t","referenceTaskIds":["r"]}}',
        b'tasks/pushNotificationConfig/get\n{"id":"t"}',
        b'tasks/pushNotificationConfig/set\n{"id":"t","pushNotificationConfig":{"url":"u"}}',
        b'tasks/list\n{"status":"input-required","statusTimestampAfter":"2026-01-01T00:00:00"}',
    ),
}
OVER_HTTP: dict[str, tuple[bytes, ...]] = {
    "1.0": (
        b'POST /acme/message:send\n{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"url":'
        b'"https://x.example","mediaType":"image/png"}]}}',
        b"GET /tasks?page_size=5&status=TASK_STATE_WORKING&includeArtifacts=true&historyLength=0\n",
        b"GET /tasks/a%2Fb%20%C3%A9?history_length=2\n",
        b"POST /tasks/t:cancel\n",
        b'POST /tasks/a:b:cancel/\n{"metadata":{"why":"x"}}',
        b"GET /tasks/t:subscribe\n",
        b'POST /acme/tasks/t/pushNotificationConfigs\n{"url":"https://x.example","token":"s"}',
        b"DELETE /tasks/t/pushNotificationConfigs/p\n",
        b"GET /extendedAgentCard\n",
    ),
    "0.3": (
        b'POST /v1/message:send\n{"request":{"messageId":"m","role":"ROLE_USER","content":[{"file":'
        b'{"fileWithBytes":"UVVKRFJBPT0=","mimeType":"image/png"}}]},"configuration":{}}',
        b'POST /v1/message:stream\n{"message":{"kind":"message","messageId":"m","role":"user",'
        b'"parts":[{"kind":"text","text":"hi"}]}}',
        b'POST /tasks/send\n{"message":{"role":"user","parts":[{"type":"text","text":"hi"}]}}',
        b'POST /v1/tasks/t/pushNotificationConfigs\n{"parent":"tasks/t","configId":"c","config":'
        b'{"name":"n","pushNotificationConfig":{"id":"c","url":"https://x.example"}}}',
        b'POST /v1/tasks/t/pushNotificationConfigs\n{"pushNotificationConfig":{"url":"u"}}',
        b"GET /v1/tasks/t?historyLength=3\n",
        b"POST /tasks/t/cancel\n",
        b"GET /tasks/t/subscribe\n",
        b"GET /v1/card\n",
    ),
}
ANSWERS_OF_0_3 = (
    b'SendMessage\n{"kind":"task","id":"t","contextId":"c","status":{"state":"input-required",'
    b'"timestamp":"2026-01-01T00:00:00.123456","message":{"role":"agent","parts":[]}}}',
    b'SendMessage\n{"role":"agent","parts":[{"text":"hi"}],"messageId":"m"}',
    b'event\n{"kind":"status-update","taskId":"t","contextId":"c","status":{"state":"completed"},'
    b'"final":true}',
    b'event\n{"kind":"artifact-update","taskId":"t","contextId":"c","artifact":{"artifactId":"a",'
    b'"parts":[{"kind":"text","text":"x"}]},"append":true,"lastChunk":false}',
    b'ListTaskPushNotificationConfigs\n[{"taskId":"t","pushNotificationConfig":{"url":"u"}}]',
)
CARDS_OF_0_3 = (
    b'{"name":"A","description":"d","url":"https://a.example/","version":"1","protocolVersion":'
    b'"0.3.0","capabilities":{"streaming":true},"defaultInputModes":[],"defaultOutputModes":[],'
    b'"skills":[{"id":"s","name":"S","description":"d","tags":[],"security":[{"oauth":["a"]}]}],'
    b'"preferredTransport":"GRPC","additionalInterfaces":[{"url":"https://a.example/rest",'
    b'"transport":"HTTP+JSON"}],"securitySchemes":{"oauth":{"type":"oauth2","flows":{"password":'
    b'{"tokenUrl":"https://t","scopes":{"a":"b"}},"implicit":{"authorizationUrl":"u","scopes":{}}}},'
    b'"key":{"type":"apiKey","in":"header","name":"X"},"odd":{"type":"magic"}},'
    b'"security":[{"oauth":["a"],"key":[]}],"supportsAuthenticatedExtendedCard":true,'
    b'"signatures":[{"protected":"p","signature":"s","header":{"kid":"k"}}]}',
    b'{"name":"A","url":"https://a.example","capabilities":null,"skills":[]}',
)
