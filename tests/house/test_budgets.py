"""The budgets of rooms for tokens, modules and slices may only fall."""

from __future__ import annotations

from tests.house.sizes import budgets, sizes

SLACK = 1.01
"""How far a budget may exceed the size of its room, so that the room does not grow again."""

HINT = "lower the budgets: python tests/house/sizes.py --write"


def test_every_room_keeps_to_its_budget() -> None:
    rooms, slices = sizes()
    allowed = budgets()
    assert rooms.keys() == allowed.keys(), HINT
    over = {
        f"{room}: {what}": f"{size}, of {allowed[room][what]}"
        for room, counts in rooms.items()
        for what, size in counts.items()
        if size > allowed[room][what]
    }
    assert over == {}, "\n".join(f"{each.path} is read by {each.reader} alone" for each in slices)


def test_what_was_taken_away_cannot_come_back() -> None:
    rooms, _ = sizes()
    loose = {
        f"{room}: {what}": f"{allowed} for {rooms[room][what]}"
        for room, lines in budgets().items()
        for what, allowed in lines.items()
        if allowed > max(rooms[room][what] * SLACK, rooms[room][what] + (what == "tokens") * 50)
    }
    assert loose == {}, HINT
