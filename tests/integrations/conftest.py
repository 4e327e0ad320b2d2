"""The agents of each framework, served in its own environment with a scripted model."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from sqlite3 import connect
from subprocess import PIPE, Popen

import pytest

import parley
from parley import Agent, Turn
from parley.conformance.background_server import BackgroundServer
from parley.testing.model_endpoint import ModelEndpoint
from tests.integrations.frameworks import FRAMEWORKS, Framework, asked
from tests.integrations.script import Script, said_in
from tests.kit.services.postgres import missing
from tests.kit.waiting import SECONDS, wait_until
from tests.peers.environments import NotMade, python_of

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
collect_ignore = [f"test_{name}.py" for name in FRAMEWORKS if name not in asked()]
if not asked():
    collect_ignore += ["test_adapters.py", "a2a_sdk"]


@dataclass
class Country:
    """A country."""

    name: str


remote = Agent("Remote", description="An agent that frameworks call")


@remote.skill(id="consult", replies="task")
async def consult(message: str, turn: Turn) -> str:
    """Answers questions of other agents; asks which city for those about the weather."""
    await turn.working("looking it up")
    if "trace" in message:
        return f"the trace is {turn.trace.trace_id or 'none'}"
    if "country" in message:  # progress before the question, and a schema for the reply
        await turn.artifact("a map", name="map")
        country = await turn.ask("Which country?", answer=Country)
        return f"a map of {country.name}"
    if "how often" in message:
        return f"asked {await turn.update('times', lambda times: times + 1, 0)} times"
    if "refuse" in message:
        turn.reject("Not on Sundays.")
    if "weather" in message:
        city = await turn.ask("Which city?")
        return f"sunny in {city.text}"
    return f"consulted on {message}"


class FrameworkServer:
    """The process that serves a framework's agents; it can be killed and started again."""

    def __init__(
        self, framework: Framework, where: Path, remote_url: str, database: str = ""
    ) -> None:
        self.framework = framework
        self.files = where
        self.script = Script()
        self.model = ModelEndpoint(self.script)
        self.url = ""
        self._remote = remote_url
        self._database = database
        self._process: Popen[bytes] | None = None

    def start(self) -> None:
        peer = self.framework.peer
        python = os.environ.get(peer.variable) or str(python_of(peer.name, peer.packages))
        script = HERE / "served" / f"{self.framework.name}.py"
        env = {
            **os.environ,
            "PYTHONPATH": f"{ROOT / 'src'}",
            "OPENAI_BASE_URL": self.model.url,
            "OPENAI_API_KEY": "none",
            "PARLEY_TEST_FILES": str(self.files),
            "PARLEY_TEST_REMOTE": self._remote,
            "PARLEY_TEST_DATABASE": self._database,
        }
        words = [python, "-W", "ignore", str(script), str(self.files / "tasks.db")]
        with (self.files / "log").open("ab") as log:
            self._process = Popen(words, stdin=PIPE, stdout=PIPE, stderr=log, env=env)
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().decode().strip()
        if not self.url:
            self.kill()
        assert self.url, f"{script.name} did not start: {self.log()[-3000:]}"

    def kill(self) -> None:
        """End the process with SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self.stop()

    def stop(self) -> None:
        """End the process. Idempotent."""
        if self._process is not None:
            process, self._process = self._process, None
            process.stdin.close()  # type: ignore[union-attr]
            process.wait(SECONDS)
            process.stdout.close()  # type: ignore[union-attr]

    def take_up(self) -> None:
        """Serve again and release held replies, whatever state a failed test left."""
        self.script.open()
        if self._process is None:
            self.start()

    def log(self) -> str:
        return (self.files / "log").read_text(errors="replace")

    def notes(self, name: str) -> list[str]:
        """Return the notes of tools since the test began."""
        path = self.files / name
        return path.read_text().split("\n")[:-1] if path.exists() else []

    def kept(self) -> list[tuple[str, str]]:
        """Return the keys and the values that contexts store."""
        with closing(connect(f"file:{self.files / 'tasks.db'}?mode=ro", uri=True)) as database:
            rows = database.execute("SELECT name, value FROM context_values").fetchall()
        return [(key, bytes(value).decode()) for key, value in rows]

    def forget(self) -> None:
        for name in ("add", "book", "wait", "begin", "echo"):
            (self.files / name).unlink(missing_ok=True)

    def await_note(self, name: str, text: str, seconds: float = SECONDS) -> None:
        self._await(lambda: text in self.notes(name), f"no {text!r} in {name}", seconds)

    def await_result(self, said: str, seconds: float = SECONDS) -> None:
        """Wait until the model gets a tool's result for a message with this beginning."""

        def is_asked() -> bool:
            return any(
                said_in(each).startswith(said) and each.tool_results for each in self.model.requests
            )

        self._await(is_asked, f"no result for {said!r}", seconds)

    def await_asked(self, said: str, seconds: float = SECONDS) -> None:
        """Wait until the model gets a prompt with this beginning."""
        self._await(
            lambda: any(said_in(each).startswith(said) for each in self.model.requests),
            f"not asked {said!r}",
            seconds,
        )

    def _await(self, condition: Callable[[], bool], what: str, seconds: float) -> None:
        try:
            wait_until(condition, seconds)
        except TimeoutError:
            raise AssertionError(f"{what}: {self.log()[-3000:]}") from None


@pytest.fixture(scope="session")
def remote_url() -> Iterator[str]:
    """The address of the agent that frameworks call."""
    app = parley.asgi(remote, store="memory:", drain=0.0)
    with ExitStack() as stack:
        server = BackgroundServer(app)
        server.start()
        stack.callback(server.stop)
        yield server.url


@pytest.fixture(scope="session", params=asked())
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, remote_url: str
) -> Iterator[FrameworkServer]:
    """The agents of a framework; a test with this fixture runs once for each framework."""
    framework, database = FRAMEWORKS[request.param], ""
    if framework.database and not missing():
        database = request.getfixturevalue("postgres").new_database()
    where = tmp_path_factory.mktemp(framework.name)
    server = FrameworkServer(framework, where, remote_url, database)
    with server.model:
        try:
            server.start()
        except (NotMade, OSError) as error:
            pytest.skip(f"no environment with {server.framework.peer.packages[0]}: {error}")
        yield server
        server.script.open()
        server.stop()


@pytest.fixture(autouse=True)
def _fresh(request: pytest.FixtureRequest) -> None:
    """Delete the tool notes of earlier tests; skip missing features, with the reason."""
    if "served" not in request.fixturenames:
        return
    server = request.getfixturevalue("served")
    server.take_up()
    server.forget()
    mark = request.node.get_closest_marker("feature")
    if mark is not None and mark.args[0] in server.framework.lacks:
        pytest.skip(f"{server.framework.name}: {server.framework.lacks[mark.args[0]]}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and "served" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.peer)
