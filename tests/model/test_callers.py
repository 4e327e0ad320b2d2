"""Who a caller is: the name under which what is theirs is kept, and the caller of a name."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from parley.model.ids import may_be_name
from parley.model.service import ANONYMOUS, Caller, caller_of

NAMES = st.text(st.characters(exclude_categories=["Cs"])).filter(may_be_name)
CALLERS = st.builds(Caller, id=NAMES.filter(bool), issuer=NAMES, authenticated=st.booleans())


def test_four_bobs_are_four_people() -> None:
    bobs = [
        Caller(id="bob", authenticated=True),
        Caller(id="bob"),
        Caller(id="bob", issuer="a", authenticated=True),
        Caller(id="bob", issuer="b", authenticated=True),
        Caller(id="bob", issuer="a"),
    ]
    assert all(one.owner != other.owner for one, other in combinations(bobs, 2))
    assert bobs[0].owner == "bob"  # as it was before there were issuers


def test_nobody_is_owner_of_nothing() -> None:
    assert ANONYMOUS.owner == Caller(authenticated=True).owner == ""
    assert caller_of("") == ANONYMOUS


@given(CALLERS, CALLERS)
def test_an_owner_is_one_caller_alone(one: Caller, other: Caller) -> None:
    assert (one.owner == other.owner) == (one == other)


@given(CALLERS)
def test_an_owner_says_who_it_is(caller: Caller) -> None:
    assert caller_of(caller.owner) == caller


def test_claims_do_not_make_another_caller() -> None:
    bob = Caller(id="bob", authenticated=True, claims={"team": "a"})
    assert bob.owner == Caller(id="bob", authenticated=True).owner


def test_a_name_has_no_control_characters() -> None:
    for wrong in (*map(chr, range(0x20)), "\x7f"):
        assert not may_be_name(f"b{wrong}ob")
    for right in ("bob", "", "https://login.example/a b", "Zoë", "a\u2028b", "x" * 512):
        assert may_be_name(right)
    assert not may_be_name("x" * 513)
