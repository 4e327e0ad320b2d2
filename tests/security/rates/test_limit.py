"""The syntax of limits, and the arithmetic of their windows."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley import Agent, Caller
from parley.model.errors import TooManyRequestsError
from parley.model.operations import SendMessageRequest
from parley.model.parts import Message, Part, Role
from parley.model.service import CallContext
from parley.security.limits import usage
from parley.security.limits.agent_limits import (
    QUOTA_FAILURE,
    AgentLimits,
    Asking,
    MessageTooLarge,
    Standing,
    exceeded,
)
from parley.security.limits.counters import SLOTS, LocalCounters, RedisCounters, Window
from parley.security.limits.declaration import (
    DAY_MS,
    Budget,
    Limit,
    Rate,
    SizeLimit,
    StreamLimit,
    parse_limits,
)
from parley.security.limits.usage import FLUSH_SECONDS, OTHERS, UsageMeter
from parley.store.memory import MemoryTaskStore
from tests.kit.waiting import Clock


def one(text: str, **options: Any) -> Any:
    [limit] = parse_limits([text], **options)
    return limit


@pytest.mark.parametrize(
    ("text", "amount", "period"),
    [
        ("60/minute", 60, 60_000),
        ("5 per second", 5, 1000),
        ("100 / 2 hours", 100, 7_200_000),
        ("1_000/day per caller", 1000, 86_400_000),
    ],
)
def test_a_rate_has_an_amount_and_a_span(text: str, amount: int, period: int) -> None:
    rate = one(text)
    assert isinstance(rate, Rate)
    assert (rate.amount, rate.period_ms, rate.is_daily) == (amount, period, False)


def test_a_limit_says_what_it_tells_apart_and_what_it_holds_for() -> None:
    applies = one(
        "9/minute per caller and tenant on SendMessage, gettask except caller:ada, role:ops"
    ).applies
    assert applies.per == ("caller", "tenant")
    assert applies.operations == ("SendMessage", "GetTask")
    assert [(each.kind, each.value) for each in applies.exempt] == [
        ("caller", "ada"),
        ("role", "ops"),
    ]


def test_other_limits_are_streams_budgets_and_sizes() -> None:
    limits = parse_limits(
        ["20 streams per caller", "5 MB output/day per tenant", "message 2 KiB", "message 3 parts"]
    )
    streams, output, size, parts = limits
    assert isinstance(streams, StreamLimit)
    assert isinstance(output, Budget)
    assert isinstance(size, SizeLimit)
    assert (streams.amount, output.amount, size.amount) == (20, 5_000_000, 2048)
    assert isinstance(parts, SizeLimit)
    assert parts.what == "parts"
    assert one("100 tasks/day per caller").is_daily


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("60 a minute", "none of the forms"),
        ("60/minute per planet", "'per' has caller, tenant"),
        ("60/minute on Foo", "there is no operation 'Foo'; there are SendMessage"),
        ("0/minute", "1 or more"),
        ("5/0 minutes", "between a second and 31 days"),
        ("60/minute except ada", "caller:ID"),
        ("60/minute except address:nowhere", "no address or network"),
        ("artifact 5 MB per caller", "applies to every caller"),
        ("5 streams per skill", "not counted by skill"),
        ("5 MB output/day", "per caller, per tenant, or per both"),
        ("60/minute on SendMessage for skill a", "leave 'on' out"),
        ("60/minute except caller:a per caller", "caller:ID"),
        ("", "none of the forms"),
        ("60/fortnight", "none of the forms"),
    ],
)
def test_a_limit_that_cannot_be_read_is_refused_with_the_right_form(text: str, why: str) -> None:
    with pytest.raises(ValueError, match="Limits look like '60/minute per caller'") as refused:
        parse_limits([text])
    assert why in str(refused.value)


def test_a_single_text_is_no_list() -> None:
    with pytest.raises(TypeError, match=r"such as \['60/minute per caller'\]"):
        parse_limits("60/minute")


def test_policies_have_names_of_their_own() -> None:
    names = [each.name for each in parse_limits(["5/minute", "6/minute", "7/hour"])]  # type: ignore[union-attr]
    assert names == ["all-minute", "all-minute-2", "all-hour"]


def test_an_agent_refuses_a_limit_of_a_skill_that_it_does_not_have() -> None:
    agent = Agent("Limited", limits=["5/minute for skill translate"])

    @agent.skill
    def echo(text: str) -> str:
        return text

    with pytest.raises(ValueError, match="'translate', which the agent 'Limited' does not have"):
        agent.describe()


def test_a_skill_refuses_limits_of_streams() -> None:
    agent = Agent("Limited")
    with pytest.raises(ValueError, match="give the limit to the agent"):
        agent.skill(limits=["5 streams per caller"])(lambda text: text)


# -- the arithmetic of windows ---------------------------------------------------------------------


PERIODS = st.sampled_from([1000, 60_000, 7_200_000])
STEPS = st.lists(st.tuples(st.integers(0, 90_000), st.integers(1, 5)), max_size=60)


@pytest.mark.slow
@given(st.sampled_from([1000, 60_000]), st.integers(1, 20), STEPS)
def test_no_span_has_more_than_the_amount(
    period: int, amount: int, steps: list[tuple[int, int]]
) -> None:
    window, now = Window(period), 0
    taken: list[tuple[int, int]] = []
    for pause, wanted in steps:
        now += pause
        if given_ := window.take(now, amount, wanted):
            taken.append((now, given_))
    for begin, _ in taken:
        within = sum(count for at, count in taken if begin <= at < begin + period)
        assert within <= amount


@given(PERIODS, st.integers(1, 20), STEPS)
def test_after_the_wait_there_is_room(
    period: int, amount: int, steps: list[tuple[int, int]]
) -> None:
    window, now = Window(period), 0
    for pause, wanted in steps:
        now += pause
        window.take(now, amount, wanted)
    if window.total >= amount:
        assert window.take(now + window.wait(now), amount) == 1


@given(PERIODS, st.integers(1, 20), STEPS)
def test_what_is_given_back_can_be_taken_again(
    period: int, amount: int, steps: list[tuple[int, int]]
) -> None:
    window, now = Window(period), 0
    for pause, wanted in steps:
        now += pause
        before = window.total
        given_ = window.take(now, amount, wanted)
        window.give_back(given_)
        assert window.total <= before
        assert window.take(now, amount, given_) == given_


@given(STEPS)
def test_a_window_is_as_large_as_its_slots(steps: list[tuple[int, int]]) -> None:
    window, now = Window(60_000), 0
    for pause, wanted in steps:
        now += pause
        window.take(now, 10**9, wanted)
        assert len(window._slots) <= SLOTS + 1


def test_a_day_begins_anew() -> None:
    day = 86_400_000
    window = Window(day, 0)
    assert window.take(0, 5, 3) == 3
    assert window.take(day - 1, 5, 9) == 2
    assert window.wait(day - 1) == 1
    assert window.take(day, 5, 9) == 5


def test_a_clock_that_goes_back_gives_nothing_away() -> None:
    window = Window(1000)
    assert window.take(10_000, 3, 3) == 3
    assert window.take(9_000, 3) == 0


# -- the limits of an agent ------------------------------------------------------------------------


ADA = Caller("ada", authenticated=True)


def limits_of(*own: Limit, meter: UsageMeter | None = None) -> AgentLimits:
    counters = LocalCounters(lambda: 0)
    return AgentLimits(
        "shop", server=(), own=own, counters=counters, daily=counters, streams=Counter(),
        usage=meter, now=lambda: 0,
    )  # fmt: skip


def test_an_exemption_is_for_its_scope() -> None:
    applies = one("9/minute except scope:ops").applies
    callers = [Caller("ada", True, scopes=frozenset({name})) for name in ("ops", "read")]
    asked = [Asking(caller, "", "1.2.3.4", "GetTask") for caller in callers]
    assert [each.is_exempt(applies) for each in asked] == [True, False]


def test_the_error_of_a_limit_has_its_policy() -> None:
    error = exceeded("5/minute", Standing("all-minute", 5, 60, 0, 2.5))
    assert (error.metadata, error.retry_after) == (
        {"limit": "5/minute", "policy": "all-minute", "remaining": "0"}, 3
    )  # fmt: skip
    violation = {"subject": "all-minute", "description": "limit: 5/minute"}
    assert error.details == ({"@type": QUOTA_FAILURE, "violations": [violation]},)


def test_an_open_stream_counts_until_its_end() -> None:
    limits, asking = limits_of(one("2 streams")), Asking(ADA, "", "", "SubscribeToTask")
    with limits.stream(asking):
        with limits.stream(asking):
            pass
        with limits.stream(asking), pytest.raises(TooManyRequestsError), limits.stream(asking):
            pass
    assert limits._open == {}


def test_a_skill_has_the_smallest_of_its_sizes() -> None:
    limits = limits_of(one("message 1 KiB", skill="translate"), one("message 2 KiB"))
    message = Message(message_id="m", role=Role.USER, parts=(Part(text="x" * 1500),))
    request, context = SendMessageRequest(message=message), CallContext(caller=ADA)
    assert limits.admit(request, context, "echo", begins=True) is None
    with pytest.raises(MessageTooLarge, match="1 KiB") as refused:
        limits.admit(request, context, "translate", begins=True)
    assert [each.field for each in refused.value.violations] == ["message"]


def test_a_rate_in_redis_has_its_span() -> None:
    pytest.importorskip("limits")
    item = RedisCounters("redis://localhost", "p", lambda: 0)._item(one("5/2 minutes"))
    assert (item.amount, item.get_expiry()) == (5, 120)


@pytest.mark.anyio
async def test_usage_is_summed_over_the_store_and_this_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(20_000 * DAY_MS)
    store = MemoryTaskStore(clock=clock)
    await store.open(lambda records: None)
    meter, other = UsageMeter(store, clock), UsageMeter(store, clock)
    meter.count("requests", "shop", "t", "ada", amount=2)
    meter.count("requests", "shop", "t", "eve")
    assert meter.totals["requests"] == 3
    whose = (20_000, None, None, "ada")
    assert await meter.used("requests", whose) == 2
    other.count("requests", "shop", "t", "ada", amount=5)
    await other.flush()
    assert await meter.used("requests", whose) == 2
    clock.now += round(FLUSH_SECONDS * 1000) + 1
    assert await meter.used("requests", whose) == 7
    few = UsageMeter(MemoryTaskStore(clock=clock), clock)
    monkeypatch.setattr(usage, "MOST_ROWS", 1)
    limits_of(meter=few).begin("GetTask", ADA, lambda: "").of_tenant("")
    few.count("requests", "shop", "t", "eve", "echo")
    few.count("requests", "shop", "t", "bob", "echo")
    assert [key[1:] for key in few._pending] == [
        ("shop", "", ADA.owner, ""), ("shop", "", "eve", ""), ("shop", "", OTHERS, "")
    ]  # fmt: skip
