"""The verifier: every change of a chain shows, and says where."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from parley.store.audit.trail import (
    Anchor,
    AuditEntry,
    AuditLine,
    AuditPrune,
    canonical,
    checkpoint,
    hash_of,
    line_columns,
    line_in,
    lines_after,
    text_of,
    verify,
)

TEXTS = st.text(max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
ENTRIES = st.builds(
    AuditEntry,
    kind=TEXTS,
    at=st.integers(1, 2**50),
    actor=TEXTS,
    issuer=TEXTS,
    subject=TEXTS,
    details=st.dictionaries(TEXTS, VALUES, max_size=4),
)
CHAINS = st.lists(ENTRIES, min_size=3, max_size=8).map(lambda given: lines_after(None, given, 1))
FIELDS = ("at", "kind", "actor", "issuer", "subject", "previous", "hash", "details", "id")


@given(CHAINS)
def test_a_chain_as_it_was_made_is_intact(lines: list[AuditLine]) -> None:
    result = verify(lines, [Anchor.of(line.anchor) for line in lines])
    assert result.is_intact
    assert result.anchor == lines[-1].anchor
    assert [line_in(json.loads(text_of(line))) for line in lines] == lines


@given(CHAINS, st.data())
def test_a_changed_line_shows(lines: list[AuditLine], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(lines) - 1))
    field = data.draw(st.sampled_from(FIELDS))
    before = getattr(lines[at], field)
    others: dict[str, Any] = {"at": before + 1 if field == "at" else 0}
    after = others.get(field, {"x": "y"} if field == "details" else f"{before}x")
    changed = [*lines[:at], replace(lines[at], **{field: after}), *lines[at + 1 :]]
    result = verify(changed)
    assert lines[at].seq in [problem.seq for problem in result.problems]


@given(CHAINS, st.data())
def test_a_removed_line_shows(lines: list[AuditLine], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(lines) - 1))
    left = lines[:at] + lines[at + 1 :]
    result = verify(left, [Anchor.of(lines[-1].anchor)])
    assert lines[at].seq in [problem.seq for problem in result.problems]


@given(CHAINS, st.data())
def test_reordered_lines_show(lines: list[AuditLine], data: st.DataObject) -> None:
    moved = data.draw(st.permutations(lines))
    renumbered = [replace(line, seq=n) for n, line in enumerate(moved, 1)]
    assert verify(moved).is_intact == (moved == lines)
    assert verify(renumbered).is_intact == (moved == lines)


@given(CHAINS, st.data())
def test_lines_that_are_written_anew_show_with_an_anchor(
    lines: list[AuditLine], data: st.DataObject
) -> None:
    at = data.draw(st.integers(1, len(lines) - 1))
    head = (lines[at - 1].seq, lines[at - 1].hash)
    forged = lines_after(head, [replace_actor(line) for line in lines[at:]], 1)
    assert verify([*lines[:at], *forged]).is_intact
    result = verify([*lines[:at], *forged], [Anchor.of(lines[-1].anchor)])
    assert not result.is_intact


def replace_actor(line: AuditLine) -> AuditEntry:
    names = AuditEntry.__struct_fields__
    return AuditEntry(**{name: getattr(line, name) for name in names} | {"actor": "someone else"})


@given(CHAINS, st.data())
def test_a_begin_without_a_checkpoint_that_fits_shows(
    lines: list[AuditLine], data: st.DataObject
) -> None:
    at = data.draw(st.integers(1, len(lines) - 1))
    by = AuditEntry(kind="")
    prune = AuditPrune(before=1, by=by)
    head = (lines[-1].seq, lines[-1].hash)
    fitting = lines_after(head, [checkpoint(prune, lines[at - 1], at)], 1)
    assert verify([*lines[at:], *fitting]).is_intact
    assert not verify(lines[at:]).is_intact
    forged = replace(lines[at - 1], hash="0" * 64)
    other = lines_after(head, [checkpoint(prune, forged, at)], 1)
    assert not verify([*lines[at:], *other]).is_intact


@settings(max_examples=200)
@given(ENTRIES)
def test_lines_have_the_canonical_form_of_rfc_8785(entry: AuditEntry) -> None:
    rfc8785 = pytest.importorskip("rfc8785")
    [line] = lines_after(None, [entry], 1)
    fields = asdict(line)
    assert canonical(fields) == rfc8785.dumps(fields)
    del fields["hash"]
    assert line.hash == hash_of(line) == hashlib.sha256(rfc8785.dumps(fields)).hexdigest()
    assert json.loads(line_columns(line)["details"]) == line.details


@pytest.mark.parametrize("text", ["", "1", "1:abc", "x:" + "0" * 64, "-1:" + "0" * 64])
def test_what_is_no_anchor_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not an anchor"):
        Anchor.of(text)


def test_a_line_of_an_export_has_its_fields_and_no_others() -> None:
    [line] = lines_after(None, [AuditEntry(kind="a")], 1)
    document = json.loads(text_of(line))
    for changed in ({**document, "more": 1}, {**document, "seq": "1"}, [], {"seq": 1}):
        with pytest.raises(ValueError, match="not a line"):
            line_in(changed)
