"""Strategies for requests and responses, and HTTP+JSON routing."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qsl, unquote

from hypothesis import strategies as st
from msgspec.structs import replace

from parley.model.cards import AgentCard, AgentInterface
from parley.model.operations import (
    OPERATIONS,
    Operation,
    SendMessageResponse,
    StreamResponse,
    TaskPushNotificationConfig,
)
from parley.wire.v0_3.http_json import HttpJson
from parley.wire.versions import HttpRequest
from tests.kit.strategies import names, value_of

CALLED = [operation for operation in OPERATIONS if not operation.streaming]


def _offered(card: AgentCard, versions: list[str]) -> AgentCard:
    offered = [
        replace(each, protocol_version=version)
        for each, version in zip(card.supported_interfaces, versions, strict=False)
    ]
    main = AgentInterface(
        url="https://a.example", protocol_binding="JSONRPC", protocol_version="0.3"
    )
    return replace(card, supported_interfaces=(main, *offered))


cards = st.builds(
    _offered,
    value_of(AgentCard),
    st.lists(st.sampled_from(["0.3", "0.3.0", "0.3.7", "1.0", "0.2", "0.30", ""]), max_size=3),
)

configs = st.builds(
    lambda config, task_id: replace(config, task_id=task_id),
    value_of(TaskPushNotificationConfig),
    names,
)


def request_of(operation: Operation) -> st.SearchStrategy[Any]:
    """Return a strategy for valid requests of an operation."""
    if operation.request is TaskPushNotificationConfig:
        return configs
    return value_of(operation.request)


def answer_of(operation: Operation) -> st.SearchStrategy[Any]:
    """Return a strategy for responses of an operation, unwrapped."""
    kind = operation.response
    if kind is AgentCard:
        return cards
    if kind is TaskPushNotificationConfig:
        return configs
    if kind in (SendMessageResponse, StreamResponse):
        return value_of(kind).map(lambda wrapper: wrapper.payload)
    if kind.__name__ == "ListTaskPushNotificationConfigsResponse":
        return st.builds(
            lambda page, held: replace(page, configs=tuple(held)),
            value_of(kind),
            st.lists(configs, max_size=2),
        )
    return value_of(kind)


def read(codec: HttpJson, asked: HttpRequest) -> Any:
    """Return a request as decoded by its intended route."""
    for route in codec.routes:
        pattern = re.sub(r"\{(\w+)\}", r"(?P<\1>[^/:]+)", route.path)
        match = re.fullmatch(pattern, asked.path)
        if match and route.verb == asked.verb:
            path = {name: unquote(value) for name, value in match.groupdict().items()}
            query = parse_qsl(asked.query, keep_blank_values=True)
            return codec.read_request(route, path, query, asked.body or b"")
    raise AssertionError(f"no route for {asked}")
