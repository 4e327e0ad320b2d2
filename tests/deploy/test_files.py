"""The files of ``deploy/`` agree with each other and with the command."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from parley.cli.store.acts import STORE_VARIABLE
from parley.host.options import DRAIN_SECONDS, scheme_of
from parley.host.store_urls import POSTGRES, REDIS
from parley.server.settings import Settings
from tests.deploy.files import DEPLOY, DOCKERFILE, ROOT, command_of, compose, flags, seconds

UNIT = (DEPLOY / "systemd" / "parley-agent.service").read_text("utf-8")
RUNS = {
    "image": command_of("ENTRYPOINT"),
    "compose": compose()["services"]["agent"]["command"],
    "systemd": re.findall(r"^ExecStart=\S+ serve (.+)$", UNIT, re.M)[0].split(),
}


@pytest.mark.parametrize("name", RUNS)
def test_every_flag_is_one_of_the_command_and_none_is_a_secret(name: str) -> None:
    given = [a.partition("=")[0] for a in RUNS[name] if a.startswith("-")]
    assert set(given) <= flags()
    assert not [a for a in RUNS[name] if "://" in a and not a.startswith("--url=")]


def test_every_variable_of_compose_is_in_the_example() -> None:
    example = (DEPLOY / "env.example").read_text("utf-8")
    known = set(re.findall(r"^(\w+)=", example, re.M))
    used = set(re.findall(r"\$\{(\w+)", (DEPLOY / "compose.yaml").read_text("utf-8")))
    assert used == known
    assert re.findall(r"PASSWORD=(.*)", example) == ["", ""]


def test_replicas_are_told_of_store_and_bus_by_variables_that_the_command_reads() -> None:
    told = compose()["services"]["agent"]["environment"]
    assert scheme_of(told[STORE_VARIABLE]) in POSTGRES
    assert scheme_of(told["PARLEY_BUS"]) in REDIS


def test_everybody_means_the_same_port() -> None:
    words = command_of("ENTRYPOINT")
    port = words[words.index("--port") + 1]
    assert f"EXPOSE {port}\n" in DOCKERFILE
    assert f":{port}/health/ready" in command_of("HEALTHCHECK")[-1]
    assert f"agent:{port} " in (DEPLOY / "haproxy/haproxy.cfg").read_text("utf-8")


def test_what_compose_publishes_is_where_the_proxy_listens() -> None:
    (published,) = compose()["services"]["proxy"]["ports"]
    outside, inside = published.split(":")
    assert f"bind :{inside}\n" in (DEPLOY / "haproxy/haproxy.cfg").read_text("utf-8")
    assert f"PUBLIC_URL=http://localhost:{outside}\n" in (DEPLOY / "env.example").read_text("utf-8")
    only_proxy = [name for name, each in compose()["services"].items() if "ports" in each]
    assert only_proxy == ["proxy"]


def test_files_that_are_mounted_or_built_from_are_there() -> None:
    services = compose()["services"]
    assert (DEPLOY / services["agent"]["build"]["context"]).resolve() == ROOT
    assert (ROOT / services["agent"]["build"]["dockerfile"]).is_file()
    mounted = services["proxy"]["volumes"][0].split(":")[0]
    assert (DEPLOY / mounted).is_file()


def test_replicas_are_not_killed_while_they_drain_and_write_nowhere() -> None:
    agent = compose()["services"]["agent"]
    assert seconds(agent["stop_grace_period"]) > DRAIN_SECONDS + 5
    assert agent["read_only"] is True
    assert agent["cap_drop"] == ["ALL"]
    stop = re.findall(r"^TimeoutStopSec=(\d+)$", UNIT, re.M)
    assert int(stop[0]) > DRAIN_SECONDS + 5


def test_streams_outlive_the_proxy_s_patience() -> None:
    text = (DEPLOY / "haproxy/haproxy.cfg").read_text("utf-8")
    patience = {name: seconds(value) for name, value in re.findall(r"timeout (\S+) (\S+)", text)}
    for side in ("client", "server"):
        assert patience[side] > 2 * Settings().keep_alive


@pytest.mark.skipif(not shutil.which("hadolint"), reason="hadolint is not installed")
def test_the_dockerfile_has_no_fault_that_hadolint_knows() -> None:
    done = subprocess.run(["hadolint", DEPLOY / "Dockerfile"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
