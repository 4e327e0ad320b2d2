"""Messages as in the documentation, and strategies for all valid ones."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
from hypothesis import strategies as st

from parley.envelope.messages import (
    Envelope,
    MessageInfo,
    MessageSecurity,
    MessageSource,
    RequestMetadata,
    RequestPayload,
    ResponsePayload,
    Target,
)
from parley.model.struct import encode
from tests.kit.strategies import json_objects, json_values, timestamps, value_of

REQUEST: dict[str, Any] = {
    "version": "1.0",
    "messageId": "b7c1f0de-7d5c-4a62-9d0a-2f6f1c3e9a10",
    "timestamp": "2026-01-15T10:30:00.000Z",
    "source": {
        "agentId": "customer-service-001",
        "agentType": "customer-service",
        "instanceId": "instance-7",
    },
    "target": {
        "agentId": "knowledge-base-001",
        "agentType": "knowledge-base",
        "routingStrategy": "direct",
    },
    "message": {
        "type": "REQUEST",
        "subType": "query",
        "correlationId": "conversation-1",
        "priority": "high",
    },
    "payload": {
        "action": "search",
        "parameters": {"query": "password", "category": "customer-service", "maxResults": 5},
        "metadata": {"timeout": 5000, "retryCount": 0, "encoding": "utf-8"},
    },
    "security": {
        "signature": "c2lnbmF0dXJl",
        "timestamp": "2026-01-15T10:30:00.000Z",
        "nonce": "5f2b1c0a",
    },
}


def request(**changes: Any) -> dict[str, Any]:
    """Return the members of a REQUEST, with some replaced by path: ``payload__action="a"``.

    A member with the value ``...`` is left out.
    """
    members = copy.deepcopy(REQUEST)
    for path, value in changes.items():
        *above, name = path.split("__")
        held = members
        for each in above:
            held = held[each]
        if value is ...:
            del held[name]
        else:
            held[name] = value
    return members


_names = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), max_size=12)
_ids = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)


def _some(strategy: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return strategy.filter(bool)


_requests = st.builds(
    RequestPayload,
    action=_some(_names),
    parameters=json_values.filter(lambda value: value is not None),
    metadata=st.builds(
        RequestMetadata,
        timeout=st.none() | st.integers(0, 2**53 - 1),
        retry_count=st.integers(0, 9),
        encoding=st.sampled_from(["utf-8"]),
        stream=st.booleans(),
        context_id=_ids,
        task_id=_ids,
        after=st.none() | st.integers(0, 9),
        service_parameters=st.dictionaries(_names, _names, max_size=2),
    ),
)


@st.composite
def envelopes(draw: st.DrawFn) -> Envelope:
    """Return any valid message."""
    kind = draw(st.sampled_from(["REQUEST", "RESPONSE", "EVENT", "HEARTBEAT", "INVENTORY"]))
    answers = value_of(ResponsePayload)
    payloads: st.SearchStrategy[Any] = json_objects.filter(
        lambda value: kind != "EVENT" or not {"action", "status"} & value.keys()
    ).map(lambda value: msgspec.Raw(encode(value)))
    if kind == "REQUEST":
        payloads = _requests
    elif kind == "RESPONSE":
        payloads = answers
    elif kind == "EVENT":
        payloads |= answers | _requests
    is_request = kind == "REQUEST"
    return Envelope(
        version=draw(st.sampled_from(["1", "1.0", "1.7", "1.2.3"])),
        message_id=draw(_some(_ids)),
        timestamp=draw(timestamps),
        source=draw(
            st.builds(MessageSource, agent_id=_some(_names), agent_type=_names, instance_id=_names)
        ),
        target=draw(
            st.builds(
                Target,
                agent_id=_names,
                agent_type=_names,
                routing_strategy=st.sampled_from(["direct", "broadcast", "load-balance"])
                if is_request
                else _names,
            )
        ),
        message=draw(
            st.builds(
                MessageInfo,
                type=st.just(kind),
                sub_type=st.sampled_from(["query", "command", "notification"])
                if is_request
                else _names,
                correlation_id=_ids,
                priority=st.sampled_from(["low", "normal", "high", "urgent"])
                if is_request
                else _names,
            )
        ),
        payload=draw(payloads),
        security=draw(
            st.none()
            | st.builds(
                MessageSecurity,
                signature=_some(_names),
                timestamp=timestamps,
                nonce=_some(_names),
                key_id=_names,
                algorithm=_names,
            )
        ),
        further=draw(json_objects.map(lambda given: {f"x-{name}": v for name, v in given.items()})),
    )
