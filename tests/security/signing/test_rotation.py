"""Signing keys are created and rotated by one process at a time, and verifiers keep up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from parley.security.key_sets import KeySet, read_keys
from parley.security.signing.cards import sign_card, verify
from parley.security.signing.keys import (
    SigningKeys,
    SigningKeysInvalid,
    WriteUnderWay,
    new_key_set,
    replacing,
    rotated,
    write_key_set,
)
from tests.security.signing.cards import LATEST
from tests.security.signing.key_sets import key_set, private_jwk

NOW = 1_800_000_000.0
DAY = 86_400.0


def states(document):
    return [(key["state"], key["kid"]) for key in document["keys"]]


def keys_at(document, now=NOW):
    return SigningKeys.parse(json.dumps(document), clock=lambda: now)


@pytest.mark.slow
def test_a_new_key_set_has_a_current_and_a_next_key_of_each_algorithm():
    document = new_key_set(["EdDSA", "ES256", "RS256", "EdDSA"], NOW)
    keys = keys_at(document)
    assert [key.alg for key in keys.signers] == ["EdDSA", "ES256", "RS256"]
    assert len(keys.published["keys"]) == 6
    assert [key["state"] for key in document["keys"]] == ["current"] * 3 + ["next"] * 3
    assert new_key_set([], NOW)["keys"][0]["alg"] == "ES256"
    for alg in ("none", "HS256", "ES512", ""):
        with pytest.raises(ValueError, match="ES256, RS256, EdDSA"):
            new_key_set([alg], NOW)


@pytest.mark.slow
def test_a_key_that_signs_no_more_has_no_private_half():
    done = rotated(write_key_set(new_key_set(["ES256", "RS256"], NOW)), NOW, DAY)
    for key in done.document["keys"]:
        private = {"d", "p", "q", "dp", "dq", "qi"} & set(key)
        assert bool(private) == (key["state"] != "previous")


def test_a_card_stays_trusted_through_rotations_whatever_the_age_of_the_verifiers_keys():
    document = new_key_set(["ES256"], NOW)
    seen, cards = [], []
    for day in range(4):
        now = NOW + day * DAY
        keys = keys_at(document, now)
        seen.append(KeySet(read_keys(keys.published)))
        cards.append(sign_card(LATEST, keys.signers))
        document = rotated(write_key_set(document), now + DAY / 2, DAY).document
    for day in range(3):
        assert verify(cards[day + 1], seen[day]).is_trusted  # keys fetched earlier
        assert verify(cards[day], seen[day + 1]).is_trusted  # a card fetched earlier
    assert not verify(cards[0], seen[3]).is_trusted  # after the overlap


def test_a_set_of_another_maker_can_be_rotated():
    jwk = private_jwk(kid="mine", note="kept")
    done = rotated(key_set(jwk), NOW, DAY)
    assert done.ended == ("mine",)
    assert done.unpublished == done.signs
    (previous,) = [key for key in done.document["keys"] if key["state"] == "previous"]
    public = {name: value for name, value in jwk.items() if name != "d"}
    assert previous == {**public, "state": "previous", "until": int(NOW + DAY)}
    for now, count in ((NOW + DAY - 1, 3), (NOW + DAY, 2)):
        assert len(keys_at(done.document, now).published["keys"]) == count
    single = rotated(json.dumps(private_jwk(kid="one")), NOW, DAY)
    assert single.ended == ("one",)


def test_what_is_no_key_set_is_not_rotated():
    with pytest.raises(SigningKeysInvalid):
        rotated("{}", NOW, DAY)
    with pytest.raises(SigningKeysInvalid, match="overlap"):
        rotated(key_set(), NOW, -1)


# -- files -------------------------------------------------------------------------------------


def test_a_new_file_is_private_whatever_the_umask(tmp_path):
    before = os.umask(0o000)
    try:
        with replacing(tmp_path / "keys", creates=True) as write:
            write(b"1")
    finally:
        os.umask(before)
    if os.name == "posix":
        assert (tmp_path / "keys").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["keys"]


def test_a_file_that_is_there_is_not_made_again(tmp_path):
    (tmp_path / "keys").write_bytes(b"old")
    with pytest.raises(FileExistsError), replacing(tmp_path / "keys", creates=True) as write:
        write(b"new")
    assert (tmp_path / "keys").read_bytes() == b"old"
    with pytest.raises(FileNotFoundError), replacing(tmp_path / "none") as write:
        write(b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["keys"]


def test_only_one_writes_at_a_time(tmp_path):
    path = tmp_path / "keys"
    path.write_bytes(b"old")
    with replacing(path) as write:
        with pytest.raises(WriteUnderWay, match="another process"), replacing(path):
            pass
        write(b"new")
    assert path.read_bytes() == b"new"


@pytest.mark.skipif(os.name != "posix", reason="there are no links here")
def test_a_link_to_a_file_stays_a_link(tmp_path):
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "keys").symlink_to("real")
    with replacing(tmp_path / "keys") as write:
        write(b"new")
    assert (tmp_path / "keys").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"


ROTATES = """
import sys
from pathlib import Path
from parley.security.signing.keys import WriteUnderWay, replacing
from parley.security.signing.keys import rotated, write_key_set

path, times = Path(sys.argv[1]), int(sys.argv[2])
done = 0
while done < times:
    try:
        with replacing(path) as write:
            write(write_key_set(rotated(path.read_bytes(), 1e9 + done, 0).document))
        done += 1
        print(done, flush=True)
    except WriteUnderWay:
        pass
"""


def rotating(path: Path, times: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", ROTATES, str(path), str(times)], stdout=subprocess.PIPE
    )


@pytest.mark.slow
def test_processes_that_rotate_at_once_lose_nothing(tmp_path):
    path = tmp_path / "keys"
    path.write_bytes(write_key_set(new_key_set(["EdDSA"], NOW)))
    running = [rotating(path, 20) for _ in range(3)]
    reads = 0
    while any(each.poll() is None for each in running):
        SigningKeys.parse(path.read_bytes())  # a reader never sees a partial file
        reads += 1
    for each in running:
        assert each.communicate()[0].split()[-1] == b"20"
        assert each.returncode == 0
    assert reads > 10
    assert [found.name for found in tmp_path.iterdir()] == ["keys"]


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="SIGKILL")
def test_a_process_that_is_killed_leaves_a_whole_file(tmp_path):
    path = tmp_path / "keys"
    path.write_bytes(write_key_set(new_key_set(["EdDSA"], NOW)))
    for lines in (1, 3, 7):
        running = rotating(path, 10_000)
        assert running.stdout is not None
        for _ in range(lines):
            running.stdout.readline()
        running.send_signal(signal.SIGKILL)
        running.wait()
        running.stdout.close()
        assert SigningKeys.parse(path.read_bytes()).signers
        (tmp_path / "keys.new").unlink(missing_ok=True)  # as the error message says


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="open files are not listed here")
def test_a_file_that_is_written_stays_open_nowhere(tmp_path):
    with replacing(tmp_path / "keys.json", creates=True) as write:
        write(b"{}")
    opened = [os.path.realpath(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd")]
    assert not [each for each in opened if each.startswith(str(tmp_path))]
