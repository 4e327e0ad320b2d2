"""``parley complete``: an event is completed by hand."""

from __future__ import annotations

import asyncio
import io
import sys

import pytest

from parley.store.events import Scope
from parley.store.sqlite.store import SqliteTaskStore
from tests.cli.store.test_store import fill
from tests.kit.records import creation

STORE = ("--store", "sqlite:///shop.db")


@pytest.fixture
def shop(tmp_path):
    """A store with tasks of two agents, bank and shop."""
    asyncio.run(fill(tmp_path / "shop.db"))
    return tmp_path / "shop.db"


def value_in(path, agent, key):
    async def read():
        store = SqliteTaskStore(path)
        await store.open(lambda records: None)
        found = await store.event(agent, key)
        await store.close()
        return found

    return asyncio.run(read())


def test_an_event_is_completed_once(parley, shop):
    ran = parley("complete", "payment:42", '{"paid": true}', "--agent", "shop", *STORE)
    assert (ran.status, ran.field("Event")) == (0, "payment:42 is complete")
    assert (ran.field("Agent"), ran.field("Store")) == ("shop", str(shop))
    again = parley("complete", "payment:42", '{"paid": true}', "--agent", "shop", *STORE)
    assert "as it was before" in again.stdout
    [act] = parley("audit", "--kind", "event", "--json", *STORE).lines
    assert (act["kind"], act["subject"], act["agent"]) == ("event.completed", "payment:42", "shop")
    assert (act["issuer"], act["details"]) == ("os", {})
    ran = parley("complete", "payment:42", '{"paid":true}', "--agent", "shop", *STORE)
    assert (ran.status, ran.field("Event")) == (0, "payment:42 is complete, as it was before")
    ran = parley("complete", "payment:42", "0", "--agent", "shop", *STORE, "-o", "json")
    assert (ran.status, ran.error["code"]) == (1, "PARLEY_ERR_COMPLETED")
    assert "with another value" in ran.error["message"]
    assert value_in(shop, "shop", "payment:42") == b'{"paid":true}'


def test_it_says_as_json_what_it_did(parley, shop):
    for is_new in (True, False):
        ran = parley("complete", "k", "--agent", "shop", *STORE, "-o", "json")
        assert ran.document == {
            "store": str(shop),
            "agent": "shop",
            "event": "k",
            "completed": is_new,
        }
    assert value_in(shop, "shop", "k") == b"null"


def test_the_value_may_come_from_standard_input(parley, shop, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'["piped"]\n')))
    assert parley("complete", "k", "-", "--agent", "shop", *STORE).status == 0
    assert value_in(shop, "shop", "k") == b'["piped"]'


def test_the_agent_has_to_be_named_where_there_are_several(parley, shop):
    ran = parley("complete", "k", *STORE)
    assert ran.status == 2
    assert "--agent; the store knows bank, shop" in ran.stderr
    ran = parley("complete", "k", "--agent", "bakery", *STORE)
    assert ran.status == 2
    assert "nothing of 'bakery'; it knows bank, shop" in ran.stderr


def test_the_only_agent_needs_no_name(parley, tmp_path):
    asyncio.run(_one_agent(tmp_path / "one.db"))
    ran = parley("complete", "k", "--store", "sqlite:///one.db")
    assert (ran.status, ran.field("Agent")) == (0, "shop")


async def _one_agent(path):
    store = SqliteTaskStore(path)
    await store.open(lambda records: None)
    await store.append(creation("t-1", scope=Scope("shop")))
    await store.close()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("k", "{paid: true}"), "the value is no JSON"),
        (("k", "paid"), '"like this"'),
        (("", "1"), "the key of an event"),
        (("k", '"' + "x" * 300_000 + '"'), "bytes at most"),
    ],
)
def test_what_cannot_be_is_refused(parley, shop, given, words):
    ran = parley("complete", *given, "--agent", "shop", *STORE)
    assert ran.status == 2
    assert words in ran.stderr


def test_a_store_that_does_not_exist_is_not_made(parley, tmp_path):
    ran = parley("complete", "k", "--store", "sqlite:///no.db")
    assert (ran.status, "there is no store" in ran.stderr) == (1, True)
    assert not (tmp_path / "no.db").exists()
