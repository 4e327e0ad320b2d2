"""Under which ids a framework keeps what belongs to a context and to its owner."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from parley.integrations.conversations import thread_id, user_id
from parley.store.events import Scope


def turn_of(tenant: str = "", owner: str = "", context_id: str = "c") -> Any:
    """Return what of a turn its ids are made of."""
    runner = SimpleNamespace(scope=Scope("agent", tenant, owner))
    return SimpleNamespace(context_id=context_id, _attempt=SimpleNamespace(runner=runner))


def test_a_context_and_a_user_keep_their_names_where_nobody_else_can_have_them():
    assert thread_id(turn_of()) == "c"
    assert (user_id(turn_of()), user_id(turn_of(owner="ada"))) == ("anonymous", "ada")


@pytest.mark.parametrize("id_of", [thread_id, user_id])
def test_no_two_owners_have_one_id(id_of):
    owners = [
        ("", ""), ("", "ada"), ("", "anonymous"), ("", "acme/ada"), ("acme", "ada"), ("acme", ""),
        ("acme\nada", ""), ("acme", "ada\n"), ("", "../ada"), ("", "ada\x1fissuer"),
    ]  # fmt: skip
    ids = {id_of(turn_of(tenant, owner)) for tenant, owner in owners}
    assert len(ids) == len(owners)
    assert all(each.replace("-", "").replace("_", "").replace(".", "").isalnum() for each in ids)


def test_no_context_is_named_like_the_thread_of_another_owner():
    named = thread_id(turn_of(owner="ada"))
    assert thread_id(turn_of(context_id=named)) != named
