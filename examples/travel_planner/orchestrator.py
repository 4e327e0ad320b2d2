"""Plans and books trips with six other agents, and changes what it has booked.

    python examples/travel_planner
    parley send "Five days in London in July, 4,000 USD"

The first command starts all seven. The answer is a task that waits for what is missing; send it to
that task, and everything else that you want changed, until you are content:

    parley send --task-id ... "From Berlin on the 10th, we are 2 people, automatic car"
    parley send --task-id ... "Make it Rome instead"
    parley send --task-id ... "yes"

Every call is in the task's log before it is made, and every booking has a reference: kill this
agent or another at any moment, and each booking is made once.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import asdict, replace
from typing import Any

import models
import msgspec
from choosing import choose
from desk import Answer, Offer
from desks import DESKS, Desks, data_of
from trip import Goal, Held, Need, compare

from parley import A2AError, Agent, Execution, Part, RemoteTaskFailed, Task, Turn

agent = Agent(
    "Travel planner",
    description="Plans and books trips with other agents: flights, hotels, cars, tours",
    version="1.0.0",
    execution=Execution(max_attempts=models.ATTEMPTS),
)


@agent.skill(tags=["travel"], examples=["Five days in London in July, 4,000 USD"], replies="task")
async def travel(turn: Turn) -> list[Part]:
    """Plans a trip and books it; asks for what is missing, and takes changes until all is right."""
    await take_turns(turn)
    said = [*await turn.step("said", turn.recall, "said", []), turn.text]
    booked = await turn.step("booked", turn.recall, "booked", [])
    trip = Trip(turn, said, [msgspec.convert(each, Held) for each in booked])
    while not await trip.advance():
        trip.round += 1
    await turn.step("said at last", turn.remember, "said", said)
    return [Part(text=trip.summary), Part(data={"booked": [each.told for each in trip.booked]})]


async def take_turns(turn: Turn) -> None:
    """Wait for the tasks of this conversation that began earlier: they may book and cancel."""
    for task in await turn.other_tasks():
        if task.id < turn.task_id and not task.state.is_terminal:
            if task.state.is_interrupted:
                turn.reject(f"Task {task.id} of this conversation waits for you: answer that one.")
            await turn.wait_for(task)


class Trip:
    """A trip that is planned and booked, round by round: each begins with what the traveller says.

    Everything here runs again from the top for each answer and after a crash. The calls, steps and
    questions return what they returned before.
    """

    def __init__(self, turn: Turn, said: list[str], booked: list[Held]) -> None:
        self.round = 1
        self.summary = ""
        self.booked = booked
        self._turn = turn
        self._desks = Desks(turn)
        self._said = said
        self._changes: list[str] = []
        self._suggestion = ("", "")

    async def advance(self) -> bool:
        """Do what the traveller wants as far as it is known. Return whether they are content."""
        goal = await self._understand()
        if question := goal.question():
            return await self._hear(question)
        kept, needs = compare(goal.needs() if goal.wishes else [], self.booked)
        found = await asyncio.gather(*(self._desks.offers(each, self._key) for each in needs))
        offers = {need.kind: each for need, each in zip(needs, found, strict=True)}
        if none := [kind for kind, each in offers.items() if not each]:
            return await self._hear(f"I find no {none[0]} for that. What shall I change?")
        rates = await self._rates(goal, kept, found)
        chosen, total = choose(offers, kept, rates, goal.budget)
        if 0 < goal.budget < total and needs:
            question = (
                f"The cheapest that I find costs {total:,.2f} {goal.currency}, "
                f"{total - goal.budget:,.2f} more than you have. "
                "Shall I book it nevertheless, or what shall I change?"
            )
            if not agrees(answer := (await self._turn.ask(question)).text):
                return await self._heard(answer)
        await self._undo([each for each in self.booked if each not in kept])
        if question := await self._book(goal, needs, chosen):
            return await self._hear(question)
        if self._is_off:  # the goal has changed before all was booked
            return False
        await self._summarise(goal, rates)
        if not goal.wishes:
            return True
        answer = await self._turn.ask(f"{self.summary}\nIs that right? Say yes, or what to change.")
        return agrees(answer.text) or await self._heard(answer.text)

    # -- the traveller -------------------------------------------------------------------------

    async def _understand(self) -> Goal:
        self._is_off = False
        await self._turn.step(f"heard {self._key}", self._turn.remember, "said", self._said)
        return await self._desks.goal(self._said, self._key)

    async def _hear(self, question: str) -> bool:
        return await self._heard((await self._turn.ask(question)).text)

    async def _heard(self, text: str) -> bool:
        self._said.append(text)
        return False

    @property
    def _key(self) -> str:
        return str(self.round)

    async def _summarise(self, goal: Goal, rates: dict[str, float]) -> None:
        """Say what is booked, what it costs, and what was changed."""
        lines = ["Nothing is booked."]
        if self.booked:
            total = sum(each.price / rates[each.currency] for each in self.booked)
            of_budget = f" of {goal.budget:,.2f} {goal.currency}" if goal.budget else ""
            lines = ["Booked:", *(f"- {each.line}" for each in self.booked)]
            lines.append(f"Total: {total:,.2f} {goal.currency}{of_budget}.")
            if self._suggestion[0] != goal.destination:
                told = await self._desks.suggestion(goal.destination, self._key)
                self._suggestion = (goal.destination, told)
            lines.append(self._suggestion[1])
        if self._changes:
            lines[:0] = ["Cancelled:", *self._changes]
            self._changes = []
        self.summary = "\n".join(lines)

    async def _rates(
        self, goal: Goal, kept: list[Held], found: list[list[Offer]]
    ) -> dict[str, float]:
        currencies = {each.currency for offers in found for each in offers}
        return await self._desks.rates(
            goal, currencies | {each.currency for each in kept}, self._key
        )

    # -- bookings ------------------------------------------------------------------------------

    async def _undo(self, bookings: list[Held]) -> None:
        """Cancel bookings, the latest first."""
        for held in sorted(bookings, key=lambda each: -each.place):
            await self._desks.cancel(held)
            await self._turn.step(f"cancelled {held.reference}", self._drop, held)
            self._changes.append(f"- {held.line}")
            self.booked = [each for each in self.booked if each != held]

    async def _book(self, goal: Goal, needs: list[Need], chosen: dict[str, Offer]) -> str:
        """Book what is chosen: what waits for nothing at once, the rest after what it waits for.

        Returns a question if something cannot be booked; what this round has booked is cancelled.
        """
        before = list(self.booked)
        while needs:
            open_kinds = {need.kind for need in needs}
            ready = [need for need in needs if not open_kinds & set(need.after)]
            needs = [need for need in needs if need not in ready]
            answers = await asyncio.gather(
                *(self._reserve(goal, need, chosen[need.kind]) for need in ready)
            )
            held = [answer for answer in answers if isinstance(answer, Held)]
            self.booked = [*self.booked, *held]
            asks = [(n, a) for n, a in zip(ready, answers, strict=True) if isinstance(a, Task)]
            refused = next((answer for answer in answers if isinstance(answer, str)), "")
            for need, task in asks:
                if refused or self._is_off:
                    await self._give_up(need, task)
                else:
                    refused = await self._pass_on(goal, need, task)
            if self._is_off:
                return ""
            if refused:
                await self._undo([each for each in self.booked if each not in before])
                return f"{refused} Nothing new is booked. What shall I change?"
        return ""

    async def _reserve(self, goal: Goal, need: Need, offer: Offer) -> Held | Task | str:
        """Book one thing. Return the booking, the task of a desk that asks, or why it failed."""
        key = f"{need.kind} {self._key}"
        earliest = max((each.starts for each in self.booked if each.kind in need.after), default="")
        if earliest > offer.starts:
            offers = await self._desks.offers(replace(need, start=earliest), f"late {key}")
            offer = next((each for each in offers if each.stars == offer.stars), offer)
        text = f"Book offer {offer.id}."
        hotel = next((each for each in self.booked if each.kind == "hotel"), None)
        if need.kind == "spa" and hotel is not None:
            text = f"Add offer {offer.id} to booking {hotel.code}."
        if need.kind == "car" and goal.gearbox:
            text = f"Book offer {offer.id}, {goal.gearbox}."
        reference = f"{self._turn.task_id}/{key}"
        return await self._told(
            need, offer.title, text, f"book {key}", metadata={"booking": reference}
        )

    async def _told(
        self, need: Need, title: str, text: str, key: str, **options: Any
    ) -> Held | Task | str:
        """Tell a desk something. Return the booking, its task if it asks, or why there is none."""
        try:
            answer = await self._desks.call(DESKS[need.kind], text, key, **options)
        except (RemoteTaskFailed, A2AError) as error:
            self._turn.log.warning("%s could not be booked: %s", title, error)
            return f"{title} could not be booked."
        if answer.task is not None and answer.question is not None:
            return answer.task
        booking = msgspec.convert(data_of(answer), Answer).booking
        if booking is None:
            why = str(data_of(answer)["text"]).removeprefix("Error: ").rstrip(".")
            return f"{why or f'There is no {need.kind}'}."
        held = Held(
            need.kind,
            asdict(need),
            self._place(need),
            f"{self._turn.task_id}/{need.kind} {self._key}",
            booking.code,
            booking.title,
            booking.price,
            booking.currency,
            booking.starts,
        )
        await self._turn.step(f"booked {held.reference}", self._keep, held)
        return held

    async def _pass_on(self, goal: Goal, need: Need, task: Task) -> str:
        """Ask the traveller what a desk asks. The answer may be another goal instead.

        Returns why there is no booking, if the desk refuses.
        """
        number = 0
        answer: Held | Task | str = task
        while isinstance(answer, Task):
            number += 1
            question = answer.status.message
            reply = await self._turn.ask(question.text if question else f"Which {need.kind}?")
            await self._heard(reply.text)
            key = f"{need.kind} {self._key} {number}"
            wanted = await self._desks.goal(self._said, key)
            if wanted.question() or not wanted.wishes or wanted.needs() != goal.needs():
                self._is_off = True
                await self._give_up(need, answer)
                return ""
            answer = await self._told(need, f"The {need.kind}", reply.text, key, task=answer)
        if isinstance(answer, str):
            return answer
        self.booked = [*self.booked, answer]
        return ""

    async def _give_up(self, need: Need, task: Task) -> None:
        """Let a desk stop waiting for an answer."""
        await self._turn.step(f"given up {task.id}", self._desks.stop, DESKS[need.kind], task)

    def _place(self, need: Need) -> int:
        """Return the place of a booking in the order in which they are made."""
        kinds = ("flight", "hotel", "car", "tour", "spa")
        return len(self._said) * 10 + kinds.index(need.kind)

    # -- what the conversation keeps -----------------------------------------------------------

    async def _keep(self, held: Held) -> None:
        def kept(booked: list[dict[str, Any]]) -> list[dict[str, Any]]:
            others = [each for each in booked if each["reference"] != held.reference]
            return sorted([*others, asdict(held)], key=lambda each: each["place"])

        await self._turn.update("booked", kept, [])
        await self._turn.working(f"Booked: {held.line}")

    async def _drop(self, held: Held) -> None:
        def kept(booked: list[dict[str, Any]]) -> list[dict[str, Any]]:
            return [each for each in booked if each["reference"] != held.reference]

        await self._turn.update("booked", kept, [])
        await self._turn.working(f"Cancelled: {held.line}")


def agrees(text: str) -> bool:
    """Return whether the traveller agrees."""
    return bool(re.match(r"\s*(yes|ok|okay|fine|good|perfect|book|thanks)\b", text, re.IGNORECASE))
