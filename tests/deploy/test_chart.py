"""The Helm chart: its values, and what it renders where helm is installed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from parley.cli.store.acts import STORE_VARIABLE
from tests.deploy.files import CHART, DOCKERFILE, command_of, flags

HELM, VALIDATE = shutil.which("helm"), shutil.which("kubernetes-validate")

SPLIT: dict[str, Any] = {
    "url": "https://agents.example.com:8443/travel",
    "grpcPort": 9998,
    "args": ["--allow-anonymous"],
    "env": [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "model", "key": "key"}}}],
    "imagePullSecrets": [{"name": "pull"}],
    "migrations": {"enabled": False},
    "roles": {
        "both": None,
        "api": {"replicas": 2, "autoscaling": {"enabled": True, "minReplicas": 2}},
        "worker": {
            "autoscaling": {"enabled": True, "cpu": 0, "queueAge": 5},
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "nodeSelector": {"gpu": "yes"},
        },
    },
    "ingress": {"enabled": True, "className": "nginx", "tlsSecret": "tls"},
    "networkPolicy": {
        "from": [{"namespaceSelector": {"matchLabels": {"name": "ingress"}}}],
        "egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}],
    },
    "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "serviceAccount": {"create": False, "name": "mine"},
}  # fmt: skip


def values() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    return found


def test_the_schema_takes_the_values_and_no_misspelt_ones() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text("utf-8"))
    jsonschema.Draft7Validator.check_schema(schema)
    check = jsonschema.Draft7Validator(schema)
    check.validate(values())
    assert values().keys() == schema["properties"].keys() - {"global"}
    roles: list[dict[str, Any]] = [{}, {"api": {}}, {"worker": {}}, {"both": {}, "api": {}}]
    wrongs = [("roles", wrong) for wrong in roles]
    for name, wrong in [("replica", 3), ("url", "agent"), ("agents", []), *wrongs]:
        assert not check.is_valid(values() | {name: wrong}), name


def test_templates_use_values_that_there_are_and_flags_of_the_command() -> None:
    for path in (CHART / "templates").iterdir():
        text = path.read_text("utf-8")
        for name in re.findall(r"\.Values((?:\.\w+)+)", text):
            found: Any = values()
            for part in name[1:].split("."):
                assert part in found, f"{path.name}: .Values{name}"
                found = found[part]
        assert set(re.findall(r"^ +- (--[a-z-]+)", text, re.M)) <= flags()


# -- rendered ---------------------------------------------------------------------------------

Objects = list[dict[str, Any]]


@pytest.fixture(params=[{}, SPLIT], ids=["default", "split"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Objects:
    if HELM is None:
        pytest.skip("helm is not installed")
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(request.param))
    done = subprocess.run(
        [HELM, "template", "travel", CHART, "--kube-version", "1.33.0", "--values", file],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def of(objects: Objects, kind: str) -> Objects:
    return [each for each in objects if each["kind"] == kind]


def container(of: dict[str, Any]) -> dict[str, Any]:
    (only,) = of["spec"]["template"]["spec"]["containers"]
    found: dict[str, Any] = only
    return found


@pytest.mark.skipif(not VALIDATE, reason="kubernetes-validate is not installed")
def test_objects_are_what_kubernetes_knows(objects: Objects, tmp_path: Path) -> None:
    file = tmp_path / "objects.yaml"
    file.write_text(yaml.safe_dump_all(objects))
    done = subprocess.run([str(VALIDATE), "--strict", file], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_role_is_selected_replaced_and_scaled(objects: Objects) -> None:
    deployments = {each["metadata"]["name"]: each for each in of(objects, "Deployment")}
    labels = [each["spec"]["template"]["metadata"]["labels"] for each in deployments.values()]
    selectors = [each["spec"]["selector"]["matchLabels"] for each in deployments.values()]
    assert labels == selectors
    budgets = of(objects, "PodDisruptionBudget")
    assert [each["spec"]["selector"]["matchLabels"] for each in budgets] == selectors
    (service,) = of(objects, "Service")
    assert service["spec"]["selector"] in selectors
    assert service["spec"]["selector"]["app.kubernetes.io/component"] != "worker"
    for each in deployments.values():
        assert each["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    scaled = {
        e["spec"]["scaleTargetRef"]["name"]: e for e in of(objects, "HorizontalPodAutoscaler")
    }
    assert scaled.keys() == {n for n, e in deployments.items() if "replicas" not in e["spec"]}
    if scaled:
        [metric] = scaled["travel-parley-agent-worker"]["spec"]["metrics"]
        assert metric["external"]["metric"]["name"] == "parley_queue_age_seconds"
        assert metric["external"]["target"] == {"type": "Value", "value": "5"}


def test_replicas_are_told_what_to_serve_by_flags_and_secrets(objects: Objects) -> None:
    migrations = of(objects, "Job")
    for each in of(objects, "Deployment"):
        only = container(each)
        role = each["metadata"]["labels"]["app.kubernetes.io/component"]
        assert only["args"][:2] == ["agent.py", f"--role={role}"]
        assert ("--no-migrate" in only["args"]) == bool(migrations)
        assert any(a.startswith("--url=") for a in only["args"]) == (role != "worker")
        assert not [a for a in only["args"] if "://" in a and not a.startswith("--url=")]
        assert only["env"][0]["name"] == STORE_VARIABLE
        assert all("secretKeyRef" in each["valueFrom"] for each in only["env"])
    for each in migrations:
        assert container(each)["command"] == ["parley", "store", "migrate"]
        assert each["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    for each in of(objects, "Ingress"):
        assert each["spec"]["rules"][0]["host"] == "agents.example.com"


def test_replicas_drain_before_they_are_killed(objects: Objects) -> None:
    port = command_of("ENTRYPOINT")[-1]
    for each in of(objects, "Deployment"):
        only = container(each)
        assert str(only["ports"][0]["containerPort"]) == port
        [drain] = [a.removeprefix("--drain=") for a in only["args"] if a.startswith("--drain=")]
        wait = int(only["lifecycle"]["preStop"]["exec"]["command"][1])
        pod = each["spec"]["template"]["spec"]
        assert pod["terminationGracePeriodSeconds"] > wait + int(drain.removesuffix("s")) + 5
        probe = only["readinessProbe"]
        # Before the signal arrives, the readiness probe has stopped new requests.
        assert wait > probe["periodSeconds"] * probe["failureThreshold"]
        asked = {p: only[p]["httpGet"]["path"] for p in only if p.endswith("Probe")}
        assert asked == {
            "startupProbe": "/health/live",
            "livenessProbe": "/health/live",
            "readinessProbe": "/health/ready",
        }


def test_pods_are_nobody_and_write_nowhere(objects: Objects) -> None:
    for each in of(objects, "Deployment") + of(objects, "Job"):
        pod, only = each["spec"]["template"]["spec"], container(each)
        held = pod["securityContext"]
        assert held["runAsNonRoot"] is True
        assert f"USER {held['runAsUser']}:{held['runAsGroup']}\n" in DOCKERFILE
        assert held["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        assert only["securityContext"] == {
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        }
