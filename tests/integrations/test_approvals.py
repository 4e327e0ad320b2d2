"""What counts as an answer to the question whether a tool may be called."""

from __future__ import annotations

import pytest

from parley import Message, Part
from parley.integrations.answers import decision_in
from parley.model.parts import Role


@pytest.mark.parametrize(
    ("said", "is_approved"),
    [
        (["yes, please"], True),
        (["no, it is too dear"], False),
        (["do not"], False),
        ([{"approve": True}], True),
        (["Here is my decision.", {"approve": False}], False),
        (["yes, but only with a view"], None),
        ([{"approve": "yes"}], None),
        (["no", {"approve": True}], None),
        ([{"approve": True}, {"approve": False}], None),
        ([{}], None),
    ],
)
def test_only_a_clear_answer_decides(said, is_approved):
    parts = tuple(Part(text=each) if isinstance(each, str) else Part(data=each) for each in said)
    decision = decision_in(Message(message_id="1", role=Role.USER, parts=parts))
    assert (None if decision is None else decision.is_approved) is is_approved
