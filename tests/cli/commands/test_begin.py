"""``parley init``, ``examples`` and ``dev``: from an empty folder to a running agent."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.kit.processes import Running, free_port

ROOT = Path(__file__).parents[3]
posix = pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")


@pytest.mark.slow
def test_a_new_agent_runs_passes_its_test_and_has_files_for_deployment(parley, tmp_path):
    made = parley("init", "travel-desk", "--docker", "--kubernetes", "--systemd")
    assert made.status == 0, made.stderr
    folder = tmp_path / "travel-desk"
    written = {
        path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*.*")
    }
    assert {"agent.py", "test_agent.py", "pyproject.toml", "README.md", ".gitignore"} <= {*written}
    dockerfile = (folder / "deploy/Dockerfile").read_text()
    assert '"parley-a2a[cli,metrics,otel,postgres,redis]"' in dockerfile
    copied = [line.split()[1] for line in dockerfile.splitlines() if line.startswith("COPY ")]
    assert copied == ["${AGENT}", "--from=build", "--from=build"]
    assert "ARG AGENT=.\n" in dockerfile
    assert (folder / "deploy/Dockerfile.dockerignore").is_file()
    chart = yaml.safe_load(written["deploy/helm/travel-desk/Chart.yaml"])
    assert chart["name"] == "travel-desk"
    assert 'define "travel-desk.name"' in written["deploy/helm/travel-desk/templates/_names.tpl"]
    assert "/srv/travel-desk/agent.py" in written["deploy/systemd/travel-desk.service"]
    assert not [name for name, text in written.items() if "parley-agent" in name + text]
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=folder, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert "2 passed" in tested.stdout, tested.stdout
    (folder / "agent.py").write_text("mine")
    again = parley("init", "travel-desk")
    assert again.status == 2
    assert "nothing was written" in again.stderr
    assert (folder / "agent.py").read_text() == "mine"


def test_examples_are_listed_and_copied_and_replace_nothing(parley, tmp_path):
    listed = parley("examples").stdout
    assert "hello " in listed
    assert "test_hello" not in listed
    assert parley("examples", "travel_planner", "here").status == 0
    assert (tmp_path / "here/travel_planner/booking_office.sql").is_file()
    assert parley("examples", "hello").status == 0
    assert (tmp_path / "hello.py").read_text() == (ROOT / "examples/hello.py").read_text()
    assert parley("examples", "hello").status == 2
    assert parley("examples", "../pyproject").status == 2


@pytest.mark.slow
@posix
def test_dev_restarts_and_shows_errors_which_serve_keeps_to_itself(parley, tmp_path):
    agent = (
        "from parley import Agent\nagent = Agent('A')\n\n\n@agent.skill\n"
        "async def divide(text: str) -> str:\n    'Divides.'\n    return str(VALUE)\n"
    )
    (tmp_path / "agent.py").write_text(agent.replace("VALUE", "int(text) // 0"))
    port = str(free_port())
    url = f"http://127.0.0.1:{port}"
    with Running(["dev", "agent.py", "--port", port], tmp_path) as dev:
        assert "see the exceptions" in dev.until("Development: callers on this machine")
        failed = parley("send", url, "7")
        assert "ZeroDivisionError: integer division" in failed.stdout + failed.stderr
        assert "int(text) // 0" in failed.stdout + failed.stderr
        (tmp_path / "agent.py").write_text(agent.replace("VALUE", "int(text) // 7"))
        dev.until("agent.py changed; restarting")
        dev.until("Development: callers", times=2)
        assert parley("send", url, "7").field("Text") == "1"
        assert dev.end(signal.SIGINT) == 0
    (tmp_path / "agent.py").write_text(agent.replace("VALUE", "int(text) // 0"))
    with Running(["serve", "agent.py", "--port", port, "--store", "memory:"], tmp_path) as server:
        server.until("Ctrl-C stops")
        failed = parley("send", url, "7")
        assert "Reference: " in failed.stdout + failed.stderr
        assert "ZeroDivisionError" not in failed.stdout + failed.stderr
