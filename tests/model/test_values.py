"""Values of the model are comparable, hashable and immutable, and accept lists."""

from __future__ import annotations

import copy
import pickle
import re

import msgspec
import pytest
from hypothesis import given, settings
from msgspec import inspect

from parley.model.cards import AgentSkill, OAuthFlows, SecurityScheme
from parley.model.operations import BY_NAME, SendMessageRequest, SendMessageResponse, StreamResponse
from parley.model.parts import Artifact, Message, Part, Role
from parley.model.struct import InvalidField, decode, encode, valid_text
from parley.model.tasks import Task, TaskState, TaskStatus, TaskStatusUpdateEvent
from parley.wire.versions import dialect
from tests.house.sizes import ROOT
from tests.kit.strategies import MESSAGES, any_message, value_of

HELLO = Message(message_id="m-1", role=Role.USER, parts=(Part(text="hello"),))
WORKING = TaskStatus(state=TaskState.WORKING)


@pytest.mark.slow
@given(any_message())
def test_what_is_written_reads_back_equal(value):
    assert decode(encode(value), type(value)) == value


@pytest.mark.parametrize("name", MESSAGES)
def test_every_message_takes_lists_for_its_tuples(name):
    kind = MESSAGES[name]
    tuples = {
        f.name for f in inspect.type_info(kind).fields if isinstance(f.type, inspect.VarTupleType)
    }

    @settings(max_examples=20)
    @given(value_of(kind))
    def check(value):
        fields = {
            field: list(held) if field in tuples else held
            for field, held in msgspec.structs.asdict(value).items()
        }
        assert kind(**fields) == value

    check()


@pytest.mark.parametrize("version", ["1.0", "0.3"])
def test_a_part_without_data_has_none_and_null_is_data(version):
    null = Part(data=None)
    parts = (Part(text="x"), Part(raw=b""), Part(url="https://a.example"), null, Part(data={}))
    for part in parts:
        assert [part.text, part.raw, part.url, part.data].count(None) >= 3
        assert part.has_data == (part.text is None and not part.is_file)
        assert msgspec.structs.replace(part, metadata={"a": 1}).has_data == part.has_data
        for copied in (copy.copy(part), copy.deepcopy(part), pickle.loads(pickle.dumps(part))):
            assert (copied, copied.has_data) == (part, part.has_data)
    request = SendMessageRequest(message=Message(message_id="m", role=Role.USER, parts=parts))
    codec = dialect(version).jsonrpc
    send = BY_NAME["SendMessage"]
    read = codec.read_request(send, codec.write_request(send, request)).message.parts
    assert [each.has_data for each in read] == [False, False, False, True, True]
    assert read[3].data is None
    for empty in (b"{}", b'{"metadata": {}}', b'{"text": null}'):
        with pytest.raises(msgspec.ValidationError, match="none of them"):
            decode(empty, Part)
    assert decode(b'{"data": null}', Part) == null != Part(text="")


@pytest.mark.slow
def test_nothing_asks_whether_the_data_of_a_part_is_unset():
    asks = re.compile(r"\.data (is|is not|==|!=) (msgspec\.)?UNSET")
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in (ROOT / "src").rglob("*.py")
        for line in path.read_text("utf-8").splitlines()
        if asks.search(line)
    ]
    assert found == [], "part.has_data says it"


def test_a_string_is_not_taken_for_a_list_of_strings():
    with pytest.raises(TypeError, match=r"write tags=\['time'\]"):
        AgentSkill(id="x", name="x", description="x", tags="time")


def test_a_value_without_json_objects_can_be_hashed():
    assert len({HELLO, Message(message_id="m-1", role=Role.USER, parts=[Part(text="hello")])}) == 1
    assert hash(Part(raw=b"x")) == hash(Part(raw=b"x"))
    assert hash(Task(id="t", status=WORKING, history=[HELLO]))


def test_values_cannot_be_changed():
    with pytest.raises(AttributeError):
        HELLO.message_id = "other"
    changed = msgspec.structs.replace(HELLO, message_id="m-2")
    assert (changed.message_id, HELLO.message_id) == ("m-2", "m-1")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "this one has none of them"),
        ({"text": "a", "raw": b"a"}, "this one has text and raw"),
        ({"text": "a", "data": None}, "this one has text and data"),
        ({"url": "u", "raw": b"", "data": 1}, "this one has raw and url and data"),
    ],
)
def test_a_part_has_exactly_one_content(fields, message):
    with pytest.raises(ValueError, match=message):
        Part(**fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"text": 5}, "text is str, not int"),
        ({"raw": "text"}, "raw is bytes, not str"),
        ({"url": b"u"}, "url is str, not bytes"),
    ],
)
def test_a_part_does_not_hold_what_it_cannot_be_read_back_with(fields, message):
    with pytest.raises(TypeError, match=message):
        Part(**fields)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"message_id": ""}, "message_id"),
        ({"parts": ()}, "parts"),
        ({"parts": []}, "parts"),
        ({"role": Role.UNSPECIFIED}, "role"),
        ({"role": "user"}, "role"),
    ],
)
def test_a_message_has_an_id_a_role_and_parts(fields, field):
    whole = {"message_id": "m", "role": Role.USER, "parts": (Part(text="x"),)}
    with pytest.raises(InvalidField) as caught:
        Message(**(whole | fields))
    assert caught.value.field == field


def test_an_artifact_may_close_without_parts():
    assert Artifact(artifact_id="a", parts=[]).parts == ()


def test_an_artifact_has_an_id():
    with pytest.raises(InvalidField, match="artifact_id: must not be empty"):
        Artifact(artifact_id="", parts=[])


@pytest.mark.parametrize("kind", [SendMessageResponse, StreamResponse, SecurityScheme, OAuthFlows])
def test_a_choice_is_not_left_open(kind):
    with pytest.raises(ValueError, match="exactly one of"):
        kind()


def test_a_choice_is_made_once():
    task = Task(id="t", status=WORKING)
    with pytest.raises(ValueError, match="exactly one of"):
        SendMessageResponse(task=task, message=HELLO)
    with pytest.raises(ValueError, match="exactly one of"):
        StreamResponse(task=task, message=HELLO)


@pytest.mark.parametrize(
    ("event", "member"),
    [
        (HELLO, "message"),
        (Task(id="t", status=WORKING), "task"),
        (TaskStatusUpdateEvent(task_id="t", context_id="c", status=WORKING), "status_update"),
    ],
)
def test_an_event_is_wrapped_under_its_name(event, member):
    wrapped = StreamResponse.of(event)
    assert getattr(wrapped, member) is event
    assert wrapped.payload is event


def test_the_text_of_a_message_is_that_of_its_text_parts():
    message = Message(
        message_id="m", role=Role.AGENT, parts=[Part(text="one "), Part(data=1), Part(text="two")]
    )
    assert message.text == str(message) == "one two"


def test_the_text_of_a_task_is_that_of_its_artifacts_or_else_of_its_status():
    saying = Task(id="t", status=TaskStatus(state=TaskState.COMPLETED, message=HELLO))
    assert saying.text == "hello"
    made = msgspec.structs.replace(
        saying,
        artifacts=[
            Artifact(artifact_id="a", parts=[Part(text="first")]),
            Artifact(artifact_id="b", parts=[Part(text="second")]),
        ],
    )
    assert str(made) == "first\nsecond"
    assert Task(id="t", status=WORKING).text == ""


def test_terminal_and_interrupted_states_are_those_of_the_specification():
    assert {s for s in TaskState if s.is_terminal} == {
        TaskState.COMPLETED,
        TaskState.FAILED,
        TaskState.CANCELED,
        TaskState.REJECTED,
    }
    assert {s for s in TaskState if s.is_interrupted} == {
        TaskState.INPUT_REQUIRED,
        TaskState.AUTH_REQUIRED,
    }


def test_a_text_that_is_made_valid_stays_a_part_without_data() -> None:
    part = valid_text(Part(text="x\ud800y"))
    assert part == Part(text="x\ufffdy")
    assert not part.has_data
