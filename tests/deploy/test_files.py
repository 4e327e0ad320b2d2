"""The files of ``deploy/`` agree with each other and with the command."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from typing import Any

import pytest

from parley.cli.store.acts import STORE_VARIABLE
from parley.host.options import DRAIN_SECONDS, scheme_of
from parley.host.store_urls import POSTGRES, REDIS
from parley.server.settings import Settings
from tests.deploy.files import (
    DEPLOY,
    ROOT,
    compose,
    container,
    deployments,
    entrypoint,
    objects,
    seconds,
)

RUNS = {"compose": compose()["services"]["agent"]["command"]} | {
    each["metadata"]["name"]: container(each)["args"] for each in deployments()
}

UNIT = (DEPLOY / "systemd" / "parley-agent.service").read_text("utf-8")
RUNS["systemd"] = re.findall(r"^ExecStart=\S+ serve (.+)$", UNIT, re.M)[0].split()


@cache
def flags() -> set[str]:
    """Return the flags of ``parley serve`` from its help."""
    done = subprocess.run(
        [sys.executable, "-m", "parley.cli", "serve", "--help-all"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(re.findall(r"--[a-z][a-z-]+", done.stdout))


def port_of(command: list[str]) -> int:
    return int(command[command.index("--port") + 1])


@pytest.mark.parametrize("name", RUNS)
def test_every_flag_is_one_of_the_command(name: str) -> None:
    given = [a.partition("=")[0] for a in (*entrypoint(), *RUNS[name]) if a.startswith("-")]
    assert set(given) <= flags()


@pytest.mark.parametrize("name", RUNS)
def test_no_store_and_no_bus_is_an_argument_which_everybody_sees(name: str) -> None:
    assert not [a for a in RUNS[name] if "://" in a and not a.startswith("--url=")]


def test_every_variable_of_compose_is_in_the_example() -> None:
    example = (DEPLOY / "env.example").read_text("utf-8")
    known = set(re.findall(r"^(\w+)=", example, re.M))
    used = set(re.findall(r"\$\{(\w+)", (DEPLOY / "compose.yaml").read_text("utf-8")))
    assert used == known


def test_replicas_are_told_of_store_and_bus_by_variables_that_the_command_reads() -> None:
    told = compose()["services"]["agent"]["environment"]
    assert scheme_of(told[STORE_VARIABLE]) in POSTGRES
    assert scheme_of(told["PARLEY_BUS"]) in REDIS
    for deployment in deployments():
        names = {each["name"] for each in container(deployment)["env"]}
        assert names == {STORE_VARIABLE, "PARLEY_BUS"}


def test_secrets_are_made_and_named_alike_and_have_no_secret_in_them() -> None:
    (secret,) = [each for each in objects() if each["kind"] == "Secret"]
    for deployment in deployments():
        for variable in container(deployment)["env"]:
            asked = variable["valueFrom"]["secretKeyRef"]
            assert asked["name"] == secret["metadata"]["name"]
            assert asked["key"] in secret["stringData"]
    assert scheme_of(secret["stringData"]["store"]) in POSTGRES
    assert scheme_of(secret["stringData"]["bus"]) in REDIS
    assert not [v for v in secret["stringData"].values() if re.search(r"://[^/@]*:[^/@]*@", v)]
    values = re.findall(r"PASSWORD=(.*)", (DEPLOY / "env.example").read_text("utf-8"))
    assert values == ["", ""]


def test_everybody_means_the_same_port() -> None:
    port = port_of(entrypoint())
    assert f"EXPOSE {port}" in (DEPLOY / "Dockerfile").read_text("utf-8")
    assert f"agent:{port} " in (DEPLOY / "haproxy/haproxy.cfg").read_text("utf-8")
    assert f":{port}/health/ready" in str(compose()["services"]["agent"]["healthcheck"])
    for deployment in deployments():
        (only,) = container(deployment)["ports"]
        assert only == {"name": "http", "containerPort": port}


def test_what_compose_publishes_is_where_the_proxy_listens() -> None:
    (published,) = compose()["services"]["proxy"]["ports"]
    outside, inside = published.split(":")
    assert f"bind :{inside}\n" in (DEPLOY / "haproxy/haproxy.cfg").read_text("utf-8")
    assert f"PUBLIC_URL=http://localhost:{outside}\n" in (DEPLOY / "env.example").read_text("utf-8")
    only_proxy = [name for name, each in compose()["services"].items() if "ports" in each]
    assert only_proxy == ["proxy"]


def test_files_that_are_mounted_copied_or_built_from_are_there() -> None:
    services = compose()["services"]
    assert (DEPLOY / services["agent"]["build"]["context"]).resolve() == ROOT
    assert (ROOT / services["agent"]["build"]["dockerfile"]).is_file()
    mounted = services["proxy"]["volumes"][0].split(":")[0]
    assert (DEPLOY / mounted).is_file()
    text = (DEPLOY / "Dockerfile").read_text("utf-8")
    let_in = (DEPLOY / "Dockerfile.dockerignore").read_text("utf-8").splitlines()
    copied = re.findall(r"^COPY ([^-$].*) \S+$", text, re.M)
    for name in " ".join(copied).split():
        assert (ROOT / name).exists(), name
        assert f"!{name}" in let_in
    (agent,) = re.findall(r"^ARG AGENT=(\S+)$", text, re.M)
    assert (ROOT / agent).is_file()


def test_the_image_has_extras_that_there_are() -> None:
    (extras,) = re.findall(r'"\.\[(.+)\]"', (DEPLOY / "Dockerfile").read_text("utf-8"))
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert set(extras.split(",")) <= set(project["optional-dependencies"])


def test_replicas_are_not_killed_while_they_drain() -> None:
    assert seconds(compose()["services"]["agent"]["stop_grace_period"]) > DRAIN_SECONDS + 5
    for deployment in deployments():
        only = container(deployment)
        wait = float(only["lifecycle"]["preStop"]["exec"]["command"][1])
        grace = deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
        assert grace > wait + DRAIN_SECONDS + 5
        probe = only["readinessProbe"]
        # Before the signal arrives, the readiness probe has stopped new requests.
        assert wait > probe["periodSeconds"] * probe["failureThreshold"]


def test_probes_ask_what_each_is_for() -> None:
    for deployment in deployments():
        only = container(deployment)
        asked = {p: only[p]["httpGet"]["path"] for p in only if p.endswith("Probe")}
        assert asked == {
            "startupProbe": "/health/live",
            "livenessProbe": "/health/live",
            "readinessProbe": "/health/ready",
        }


def test_streams_outlive_the_proxy_s_patience() -> None:
    text = (DEPLOY / "haproxy/haproxy.cfg").read_text("utf-8")
    patience = {name: seconds(value) for name, value in re.findall(r"timeout (\S+) (\S+)", text)}
    for side in ("client", "server"):
        assert patience[side] > 2 * Settings().keep_alive


def selected(each: dict[str, Any]) -> dict[str, str]:
    selector = each["spec"]["selector"]
    found: dict[str, str] = selector.get("matchLabels", selector)
    return found


def test_what_selects_replicas_selects_some() -> None:
    labels = [d["spec"]["template"]["metadata"]["labels"] for d in deployments()]
    names = [d["metadata"]["name"] for d in deployments()]
    for each in objects():
        if each["kind"] in ("Deployment", "Service", "PodDisruptionBudget"):
            assert selected(each) in labels, each["metadata"]
        elif each["kind"] == "HorizontalPodAutoscaler":
            assert each["spec"]["scaleTargetRef"]["name"] in names


def test_a_disruption_leaves_somebody_at_work() -> None:
    for each in objects():
        if each["kind"] == "PodDisruptionBudget":
            (of,) = [d for d in deployments() if selected(d) == selected(each)]
            assert each["spec"]["maxUnavailable"] < of["spec"]["replicas"]
        elif each["kind"] == "HorizontalPodAutoscaler":
            assert each["spec"]["minReplicas"] > 1


def test_workers_are_called_by_nobody() -> None:
    workers = [d for d in deployments() if "--role=worker" in container(d)["args"]]
    services = [selected(each) for each in objects() if each["kind"] == "Service"]
    assert workers
    for worker in workers:
        assert selected(worker) not in services
        assert not [a for a in container(worker)["args"] if a.startswith("--url")]


def test_replicas_are_nobody_and_write_nowhere() -> None:
    agent = compose()["services"]["agent"]
    assert agent["read_only"] is True
    assert agent["cap_drop"] == ["ALL"]
    user = re.findall(r"^USER (\d+):\d+$", (DEPLOY / "Dockerfile").read_text("utf-8"), re.M)
    for deployment in deployments():
        pod = deployment["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert [str(pod["securityContext"]["runAsUser"])] == user
        held = container(deployment)["securityContext"]
        assert held["readOnlyRootFilesystem"] is True
        assert held["allowPrivilegeEscalation"] is False
