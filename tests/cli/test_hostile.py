"""A malicious agent's content reaches the terminal as plain text only, in every command."""

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.cli import hostile
from tests.cli.hostile import SAID, bytes_in, unsafe_in
from tests.cli.scripted import Answer
from tests.kit import forking
from tests.kit.processes import Running

ROOT = Path(__file__).parents[2]

CALLS = {
    "send": ("send", "go"),
    "send --stream": ("send", "go", "--stream"),
    "send --async": ("send", "go", "--async"),
    "send a message back": ("send", "go", "--async", "--metadata", '{"message": true}'),
    "task get": ("task", "get", "t", "--wait", "--history", "5"),
    "task list": ("task", "list"),
    "task cancel": ("task", "cancel", "t"),
    "task subscribe": ("task", "subscribe", "t", "--stream"),
    "card get": ("card", "get"),
    "card get --extended": ("card", "get", "--extended"),
    "card get --validate": ("card", "get", "--validate"),
    "push-config create": ("task", "push-config", "create", "t", "https://hooks.example"),
    "push-config get": ("task", "push-config", "get", "t", "p"),
    "push-config list": ("task", "push-config", "list", "t"),
    "push-config delete": ("task", "push-config", "delete", "t", SAID.replace("\0", "")),
}
FORMATS = {"text": ("--verbose", "--debug"), "json": ("-o", "json", "--debug")}


@pytest.fixture(scope="module")
def module_agent():
    scripted = hostile.hostile_agent()
    yield scripted
    scripted.close()


def run(folder, *words, **environment):
    """Run the command to its end; return its exit status and the bytes that it wrote."""
    keep = {k: v for k, v in os.environ.items() if not k.startswith(("A2ACLI_", "PARLEY_"))}
    own = {"HOME": str(folder), "USERPROFILE": str(folder)}
    return forking.run(("parley", *words), folder, keep | own | environment)


def check(stdout, stderr):
    for written in (stdout, stderr):
        assert bytes_in(written) == []
        assert unsafe_in(written) == set()
    for line in stderr.decode().splitlines():
        assert line.startswith(("debug: ", "note: ", "warning: ", "error: ", "hint: ")), line


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("call", CALLS)
def test_no_command_sends_a_terminal_what_it_would_obey(call, form, module_agent, tmp_path):
    if call == "send a message back":
        module_agent.says("SendMessage", Answer(result={"message": hostile.message()}))
    words = (*CALLS[call], "-a", module_agent.url, *FORMATS[form])
    status, stdout, stderr = run(tmp_path, *words)
    check(stdout, stderr)
    assert status == (1 if "--validate" in call else 0), stderr
    assert b"\\x9b2J" in stdout + stderr or b"\\u009b2J" in stdout or "delete" in call
    if form == "json":
        for line in stdout.splitlines() if "--stream" in CALLS[call] else [stdout]:
            json.loads(line)


@pytest.mark.slow
def test_json_has_escapes_and_the_value_that_was_sent(module_agent, tmp_path):
    whole = module_agent.card
    for ascii_only in (True, False):
        module_agent.card = json.dumps(whole, ensure_ascii=ascii_only).encode()
        _, stdout, _ = run(tmp_path, "card", "get", "-a", module_agent.url, "-o", "json")
        assert json.loads(stdout) == whole
        assert b"\\u009b2J" in stdout
        assert b"\\udb40\\udc41" in stdout
        assert "שלום".encode() in stdout or ascii_only
        assert bytes_in(stdout) == []
    module_agent.card = whole
    _, stdout, _ = run(tmp_path, "task", "get", "t", "-a", module_agent.url, "-o", "json")
    assert json.loads(stdout) == hostile.task()


@pytest.mark.slow
def test_text_that_only_looks_odd_is_shown_as_it_is(module_agent, tmp_path):
    _, stdout, _ = run(tmp_path, "task", "get", "t", "-a", module_agent.url)
    assert hostile.HARMLESS in stdout.decode()
    assert "\\u202egnp.exe\\u2066" in stdout.decode()


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMATS)
def test_no_failure_sends_a_terminal_what_it_would_obey(form, agent, tmp_path):
    whole = agent.card

    def fails(*words, **environment):
        words = (*words, "-a", agent.url, *FORMATS[form])
        status, stdout, stderr = run(tmp_path, *words, **environment)
        check(stdout, stderr)
        assert status != 0
        return stdout + stderr

    for code in (-32001, -32002, -32009, -32099):
        agent.says("GetTask", Answer(error=hostile.hostile_error(code)))
        assert b"title" in fails("task", "get", SAID.replace("\0", ""))
    for status in (418, 401):
        agent.says("GetTask", Answer(status=status, raw=SAID.encode()))
        fails("task", "get", "t")
    # Invalid parts of an answer are left out; ``--debug`` reports them.
    agent.says("GetTask", Answer(result={**hostile.task(), "status": {"state": SAID}}))
    words = ("task", "get", "t", "--debug", "-a", agent.url, *FORMATS[form])
    status, stdout, stderr = run(tmp_path, *words)
    check(stdout, stderr)
    assert status == 0
    agent.says("GetTask", Answer(raw=SAID.encode()))
    fails("task", "get", "t")
    ends = {"error": hostile.hostile_error(-32603)}
    agent.says("SendStreamingMessage", Answer(events=[*hostile.events()[:2], ends]))
    fails("send", "go", "--stream")
    for broken in (
        {**whole, "name": {SAID: SAID}},
        {**whole, SAID: 1, "skills": [{"id": 1, SAID: SAID}]},
        {**whole, "name": SAID, "supportedInterfaces": [agent.interface(url=SAID)]},
        {**whole, "name": SAID, "supportedInterfaces": [agent.interface(protocolBinding=SAID)]},
        {**whole, "name": SAID, "supportedInterfaces": [agent.interface(protocolVersion=SAID)]},
        f"{SAID}{{".encode(),
    ):
        agent.card = broken
        fails("task", "get", "t")
    fails("card", "get", "--validate")
    agent.card = {**hostile.card(agent), "supportedInterfaces": [agent.interface()]}
    fails("task", "get", "t", A2ACLI_API_KEY="the-key")


def test_a_command_to_go_on_with_is_one_that_can_be_copied(agent, parley):
    odd = "--config=x '\\\x1b[31m\u202e  \n;touch $HOME"
    agent.says("GetTask", Answer(result={**hostile.task("WORKING"), "id": odd}))
    command = parley("task", "get", "t", "-a", agent.url).field("Next")
    assert unsafe_in(command.encode()) == set()
    if os.name == "posix":
        shell = subprocess.run(
            ["bash", "-c", f'parley() {{ printf "%s\\0" "$@"; }}; {command}'],
            capture_output=True,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"},
        )
        assert shell.stdout.decode().split("\0")[-3:] == ["--", odd, ""]


@pytest.mark.slow
def test_what_others_wrote_into_a_configuration_is_shown(tmp_path):
    (tmp_path / ".env").write_text(f"A2ACLI_AGENT_CARD=x\x1b[2J\x9b2J\u202e{SAID[-5:]}\n", "utf-8")
    for words in (("config", "show"), ("config", "show", "-o", "json"), ("send", "--help")):
        status, stdout, stderr = run(tmp_path, *words)
        check(stdout, stderr)
        assert status == 0
        assert b"x\\x1b[2J\\x9b2J" in stdout or b"x\\u001b[2J\\u009b2J" in stdout
    status, stdout, stderr = run(tmp_path, "task", "get", "t")
    check(stdout, stderr)
    assert status == 3


LOGGING = '''
import threading
import warnings

from parley import Agent, Turn

agent = Agent("Log\\x1b[2Jger\\u202e agent", description="Logs", version="1.0.0")


@agent.skill(examples=["Say \\x9b2J"])
async def log(turn: Turn) -> str:
    """Logs what it hears, and fails with it."""
    turn.log.warning("heard %s", turn.text, stack_info=True)
    warnings.warn(turn.text)
    thread = threading.Thread(target=int, args=(turn.text,))
    thread.start()
    thread.join()
    raise ValueError(turn.text)
'''


@pytest.mark.slow
def test_what_callers_say_is_shown_in_a_servers_log_and_forges_no_line(parley, tmp_path):
    (tmp_path / "logging_agent.py").write_text(LOGGING, "utf-8")
    words = ["serve", "logging_agent.py", "--port", "0", "--store", "memory:"]
    forged = "12:00:00 ERROR   parley: forged"
    with Running([*words, "--debug", "--log-format", "text"], tmp_path) as server:
        url = server.until("Ctrl-C stops the server").split("address  ")[1].split()[0]
        said = SAID.replace("\0", "") + f"\n{forged}"
        parley("send", "-a", url, said, "--context-id", hostile.TRICKS)
        server.until("ValueError: ")
        server.until("POST / ")
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as raw:
            head = f"GET /{quote(said)} HTTP/1.1\r\nHost: x\r\nUser-Agent: \x9b2J\r\n\r\n"
            raw.sendall(head.encode("latin-1") + b"GET /\x1b[2J\r\n\r\n")
            server.until("GET /%1B%5D0")
    for written in (server.stdout, server.stderr):
        assert unsafe_in(written.encode()) == set()
    for said in (
        "heard ",
        "UserWarning: ",
        "invalid literal for int() with base 10: ",
        "ValueError: ",
    ):
        assert said in server.stderr
    assert "heard \\x1b]0;title" in server.stderr
    assert "Log\\x1b[2Jger\\u202e agent" in server.stdout
    assert forged in server.stderr
    assert not [line for line in server.stderr.splitlines() if line.startswith(forged)]


SHOWN = """
import asyncio, sys

from parley.cli.output.streams import prepare_streams
from parley.cli.rich_view import RichView
from parley.model.cards import AgentCard, AgentSkill
from parley.model.parts import Artifact, Message, Part, Role
from parley.model.tasks import (
    Task, TaskArtifactUpdateEvent, TaskState, TaskStatus, TaskStatusUpdateEvent,
)
from tests.cli.hostile import SAID
from rich.text import Text

prepare_streams()
view = RichView()
card = AgentCard(
    name=SAID, description=SAID, version=SAID, supported_interfaces=(), capabilities={capabilities},
    default_input_modes=(), default_output_modes=(),
    skills=(AgentSkill(id=SAID, name=SAID, description=SAID, tags=(SAID,)),),
)
view.begin(SAID, [SAID])
view.step(SAID, SAID)
view.show_card(card, SAID)
view.show_request(SAID)
async def answers():
    said = Message(message_id=SAID, role=Role.AGENT, parts=(Part(text=SAID),))
    view.show(said)
    ids = {{"task_id": SAID, "context_id": SAID}}
    with view.answer() as answer:
        working = TaskStatus(state=TaskState.WORKING, message=said)
        answer.event(TaskStatusUpdateEvent(**ids, status=working))
        for text in (SAID, "# " + SAID):
            grown = Artifact(artifact_id=SAID, name=SAID, parts=(Part(text=text),))
            answer.event(TaskArtifactUpdateEvent(**ids, artifact=grown, append=True))
        answer.note(SAID)
        answer.line(SAID)
    file = Part(url=SAID, filename=SAID, media_type=SAID)
    parts = (Part(text=SAID), Part(data={{SAID: SAID}}), file)
    view.show(Task(
        id=SAID, context_id=SAID, status=TaskStatus(state=TaskState.COMPLETED, message=said),
        artifacts=(Artifact(artifact_id=SAID, name=SAID, parts=parts),),
    ))

asyncio.run(answers())
view.end([SAID], serving=True)
view._console.print(SAID, Text(SAID))  # what forgets to be shown is shown all the same
print("THE END", flush=True)
""".format(capabilities="__import__('parley.model.cards').model.cards.AgentCapabilities()")
# Sequences of rich itself: colours, and cursor moves to the start of the frame.
OWN = re.compile(rb"\x1b\[(?:[0-9;]*m|\?25[lh]|2K|1A|[0-9]*[GD])|\r")


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="terminals as POSIX has them")
def test_a_terminal_is_sent_no_more_than_the_demos_own_colours_and_frames(tmp_path):
    import pty

    ours, theirs = pty.openpty()
    demo = subprocess.Popen(
        [sys.executable, "-c", SHOWN],
        cwd=ROOT,
        env=os.environ | {"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "50"},
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.STDOUT,
    )
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # Linux reports a closed terminal this way
        while piece := os.read(ours, 65536):
            shown += piece
    os.close(ours)
    assert demo.wait(15) == 0, shown.decode()
    assert b"THE END" in shown
    assert unsafe_in(OWN.sub(b"", shown)) == set()
    assert b"\x1b[1m" in shown
    assert b"\\x9d0;t" in shown
    assert b"[link=http://evil.example]x[/link]" in shown
    assert b":bomb:" in shown


REAL = f'''
from parley import Agent, Part, Turn

SAID = {SAID.replace(chr(0), "")!r}
agent = Agent("Hostile agent " + SAID, description=SAID, version=SAID)


@agent.skill(tags=[SAID], examples=[SAID])
async def say(turn: Turn) -> Part:
    """Says it."""
    await turn.working(SAID)
    odd = {{SAID: SAID}}
    await turn.artifact([SAID, odd], name=SAID, description=SAID, metadata=odd)
    return Part(text=SAID, metadata=odd)
'''


@pytest.mark.slow
@pytest.mark.parametrize("binding", ["grpc", "http+json"])
def test_no_binding_brings_a_terminal_what_it_would_obey(binding, tmp_path):
    pytest.importorskip("grpc")
    (tmp_path / "real.py").write_text(REAL, "utf-8")
    with Running(["serve", "real.py", "--port", "0", "--grpc-port", "0"], tmp_path) as server:
        url = server.until("Ctrl-C stops the server").split("address  ")[1].split()[0]
        for words in (
            ("send", "go", "--verbose", "--debug"),
            ("send", "go", "--stream", "-o", "json"),
            ("task", "list", "--artifacts", "--history", "3", "--verbose"),
            ("task", "get", SAID.replace("\0", "")[:200], "--debug"),
            ("card", "get", "--verbose"),
        ):
            status, stdout, stderr = run(tmp_path, *words, "-a", url, "--transport", binding)
            check(stdout, stderr)
            assert status == (words[1] == "get" and words[0] == "task"), stderr
            assert b"x1b]0;title" in stdout + stderr or b"u001b]0;title" in stdout
    for words in (("store", "status"), ("store", "prune", "--ended-before", "0s", "--dry-run")):
        for form in ((), ("-o", "json")):
            status, stdout, stderr = run(tmp_path, *words, *form, "--store", "sqlite:///parley.db")
            check(stdout, stderr)
            assert status == 0


@pytest.mark.slow
def test_an_export_that_says_strange_things_is_shown(tmp_path):
    lines = [{"kind": SAID}, {SAID: SAID}, {"parley": SAID, "format": SAID}, SAID]
    for line in lines:
        text = line if isinstance(line, str) else json.dumps(line, ensure_ascii=False)
        (tmp_path / "tasks.jsonl").write_text(text, "utf-8")
        for form in ((), ("-o", "json")):
            words = ("store", "import", "tasks.jsonl", "--store", "sqlite:///new.db", *form)
            status, stdout, stderr = run(tmp_path, *words)
            check(stdout, stderr)
            assert status == 1


@pytest.mark.slow
def test_what_a_grpc_server_says_when_it_hangs_up_is_shown(agent, tmp_path):
    pytest.importorskip("grpc")
    server = hostile.HostileGrpc()
    try:
        here = {"url": f"127.0.0.1:{server.port}", "protocolBinding": "GRPC"}
        agent.card["supportedInterfaces"] = [agent.interface(**here)]
        status, stdout, stderr = run(tmp_path, "task", "get", "t", "-a", agent.url)
    finally:
        server.close()
    check(stdout, stderr)
    assert status == 3
    assert server.turned_away
