"""Settings from keywords, flags, variables and ``parley.toml``, and their reload."""

from __future__ import annotations

import json
import os
import secrets
import signal
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from parley import Agent, Settings, Turn, asgi
from parley.cli.settings.server import FLAGS
from parley.host.configuration import OWNERS, SETTINGS, Configuration
from parley.host.options import ServerOptions, options_of
from parley.model.option import NamedOption
from tests.house.reference_pages import server_options
from tests.kit.processes import Running, free_port
from tests.kit.terminal import At

OBJECTS = {
    "auth", "bindings", "caller", "egress", "middleware", "policy", "settings",
    "webhook_certificate",
}  # fmt: skip
"""The options that are Python objects, or consist of settings."""

TEXTS = {
    "store": "memory:", "restrict": "docs=authenticated", "tenants": "a=shop.py",
    "limits": "7/minute", "cors_origins": "https://a.example", "grpc_address": "a.example:1",
    "audit_retention": "7d", "lease": "7s",
}  # fmt: skip


def text_of(setting: NamedOption) -> str:
    """Return a value of a setting as a text, other than its default."""
    if setting.name in TEXTS:
        return TEXTS[setting.name]
    if setting.option.choices:
        return setting.option.choices[-1]
    if setting.kind is bool:
        return "1"
    if setting.kind is float:
        return "0.7" if setting.option.metavar == "SHARE" else "7s"
    return "7" if setting.kind is int else "x.example"


def toml_of(setting: NamedOption) -> str:
    """Return the same value in a file."""
    text, kind = text_of(setting), setting.kind
    if kind is bool:
        sets = setting.option.sets
        return "false" if sets is False else "true"
    if kind is tuple:
        return f'["{text}"]'
    if kind is dict:
        name, _, value = text.partition("=")
        return f'{{ {name} = "{value}" }}'
    return text if kind is int or text == "0.7" else f'"{text}"'


def test_every_option_is_a_setting_or_a_python_object() -> None:
    assert set(ServerOptions.__struct_fields__) - OBJECTS <= SETTINGS.keys()
    assert set(Settings.__struct_fields__) <= SETTINGS.keys()
    assert set(options_of(Settings)) == set(Settings.__struct_fields__)
    secrets = {name for name, setting in SETTINGS.items() if setting.option.secret}
    assert SETTINGS.keys() - FLAGS.keys() == {*secrets, "targets"}  # targets are arguments
    variables = [setting.variable for setting in SETTINGS.values()]
    assert all(variables)
    assert len(set(variables)) == len(variables)


@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_a_setting_has_the_same_value_from_each_source(name: str, tmp_path: Path) -> None:
    setting, file = SETTINGS[name], tmp_path / "parley.toml"
    file.write_text(f"\n{name} = {toml_of(setting)}\n")
    by_variable = Configuration({}, environment={setting.variable: text_of(setting)})
    assert by_variable.sources == {name: setting.variable}
    if name == "config":
        assert by_variable.values[name] == "x.example"
        return
    by_file = Configuration({}, file, environment={})
    assert by_file.sources == {name: f"{file}:2"}
    value = by_file.values[name]
    assert value != setting.default
    if not setting.option.reads_itself:
        assert by_variable.values[name] == value
    if name in FLAGS:
        words = [text_of(setting)] if setting.kind in (tuple, dict) else text_of(setting)
        given = True if setting.kind is bool else words
        assert FLAGS[name].read(given) == value
    if OWNERS[name] is ServerOptions and by_file.options is not None:
        assert getattr(by_file.options, name) == value
    if OWNERS[name] is Settings and by_file.options is not None:
        assert getattr(by_file.options.settings, name) == value
    assert f"| `{name}` |" in server_options()


def test_a_flag_is_stronger_than_a_variable_and_a_variable_than_the_file(tmp_path: Path) -> None:
    file = tmp_path / "parley.toml"
    file.write_text("max_depth = 30\nmax_parts = 30\nmax_streams = 30\npage = false\nport = 1\n")
    environment = {"PARLEY_MAX_DEPTH": "20", "PARLEY_MAX_PARTS": "20", "PARLEY_NO_PAGE": "0"}
    environment["PARLEY_PORT"] = "tcp://10.0.0.1:80"  # as Kubernetes sets it
    found = Configuration({"max_depth": 10}, file, environment=environment).checked()
    settings = found.settings
    assert (settings.max_depth, settings.max_parts, settings.max_streams) == (10, 20, 30)
    assert settings.page is True
    assert found.port == 1


WRONG = """\
store = "memory:"
drain = "soon"
max_stream = 5
limits = [
  "60/minute",
  "max_parts = 7",
]
max_parts = 0
usage = "yes"
port = "9"
lease = "5s"
policy = 1
settings = { max_depth = 50 }
tls_cert = '''
max_file_bytes = 3
'''
max_body_bytes_held = 2048

  [restrict]
docs = "authenticated"
heath = ["10.0.0.0/8"]
"""


def test_each_problem_names_its_line_and_the_nearest_right_name(tmp_path: Path) -> None:
    file = tmp_path / "parley.toml"
    file.write_text(WRONG)
    problems = Configuration({}, file, environment={"PARLEY_MAX_DEPTH": "deep"}).problems
    assert all(problem.startswith((f"{file}:", "PARLEY_MAX_DEPTH: ")) for problem in problems)
    found = {each.removeprefix(f"{file}:").partition(": ")[0]: each for each in problems}
    assert len(found) == len(problems)
    for line, words in {
        "2": "'soon' is not a duration",
        "3": "unknown setting 'max_stream'; the nearest is max_streams",
        "4": "the limit 'max_parts = 7' cannot be read",
        "8": "max_parts takes a whole number of at least 1, not 0",
        "9": "usage: takes true or false, not a text",
        "10": "port: takes a whole number, not a text",
        "11": "lease=5 needs a store that many replicas use",
        "12": "policy is a keyword of Python",
        "13": "settings is a keyword of Python: here its parts are settings",
        "14": "give both, tls_cert and tls_key",
        "17": "max_body_bytes_held takes at least as many as one request may have",
        "21": "not 'heath'",
        "PARLEY_MAX_DEPTH": "'deep' is not a whole number",
    }.items():
        assert words in found.pop(line)
    assert not found


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"port = 1\nstore = \n", ":2: it is not TOML: Invalid value"),
        (b"port = 1\nport = 2\n", ":2: it is not TOML: Cannot overwrite a value"),
        (b'store = "\xff"', ": it is not UTF-8 text"),
        (b"#" * 300_000, ": it is larger than 262,144 bytes"),
        (b'config = "other.toml"', ":1: config: a file cannot name another"),
        (b"[serve]\nport = 1", ":1: unknown setting 'serve' (settings have no table)"),
        (None, ": it cannot be read: No such file or directory"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_problem(
    tmp_path: Path, content: bytes | None, words: str
) -> None:
    file = tmp_path / "parley.toml"
    if content is not None:
        file.write_bytes(content)
    [problem] = Configuration({}, file, environment={}).problems
    assert problem.startswith(f"{file}{words}")


def test_keywords_are_stronger_than_the_file_that_config_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    agent, file = echo(), tmp_path / "agents.toml"
    monkeypatch.setenv("PARLEY_MAX_PARTS", "20")
    file.write_text('max_depth = 30\nusage = true\nlog_level = "debug"\nport = 1\n')
    app = asgi(agent, config=file, limits=iter(["5/minute"]))
    assert (app.settings.max_depth, app.settings.max_parts) == (30, 20)
    assert f"{file}:3: log_level is for the command parley serve" in caplog.text
    assert f"{file}:4: port is for parley.serve, and has no effect here" in caplog.text
    app = asgi(agent, settings=Settings(max_depth=40))  # without config, nothing is read
    assert (app.settings.max_depth, app.settings.max_parts) == (40, 1000)
    with pytest.raises(ValueError, match="max_depth is part of settings"):
        asgi(agent, config=file, settings=Settings())
    file.write_text("max_depth = 30\ndepth = 1\n")
    with pytest.raises(ValueError, match=r"agents\.toml:2: unknown setting 'depth'"):
        asgi(agent, config=file)


def echo() -> Agent:
    agent = Agent("Echo")

    @agent.skill
    async def say(turn: Turn) -> str:
        return turn.text

    return agent


# -- parley serve, parley config ---------------------------------------------------------------

AGENT = """
from parley import Agent, Turn

agent = Agent("Echo")


@agent.skill
async def say(turn: Turn) -> str:
    return turn.text
"""

SECRET = "hunter2" * 8


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "agent.py").write_text(AGENT)
    return tmp_path


def test_config_shows_each_setting_with_its_source_and_no_secret(
    parley: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = folder / "parley.toml"
    file.write_text(
        f'drain = "90s"\nsecret_key = "{SECRET}"\nbus = "redis://ada:{SECRET}@b"\n'
        f'store = "postgresql://ada:{SECRET}@db/tasks"\nmax_part = "{SECRET}"\nport = "{SECRET}"\n'
    )
    file.chmod(0o644)
    monkeypatch.setenv("PARLEY_SECRET_KEY", SECRET[:-1])
    ran = parley("config", "show", "-o", "json")
    rows = {row["name"]: row for row in ran.document["server"]}
    assert rows.keys() == SETTINGS.keys()
    assert rows["drain"] == {"name": "drain", "value": "90s", "source": "parley.toml:1"}
    assert rows["secret_key"]["value"] == "set, not shown"
    assert rows["secret_key"]["source"] == "PARLEY_SECRET_KEY"
    assert rows["bus"]["value"] == "redis://ada@b"
    assert rows["max_parts"]["source"] == "default"
    text, check = parley("config", "show"), parley("config", "check")
    assert "serve drain: 90s (parley.toml:1)\n" in text.stdout
    assert (check.status, text.status) == (1, 0)
    assert "other users can read parley.toml" in check.stderr
    started = parley("serve", "agent.py")
    assert started.status == 2
    for each in (ran, text, check, started):
        assert "hunter2" not in each.stdout + each.stderr


def test_config_check_lists_all_problems_and_wrong_variables(
    parley: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "contradicts.toml").write_text(
        'workers = 2\nsecret_key = "short"\nsigning_keys = "none.json"\notlp = "collector:4318"\n'
    )
    (folder / "contradicts.toml").chmod(0o600)
    ran = parley("config", "check", "contradicts.toml", "-o", "json")
    lines = sorted(each.partition(": ")[0] for each in ran.document["problems"])
    assert lines == [f"contradicts.toml:{line}" for line in (1, 2, 3, 4)]
    (folder / "good.toml").write_text('targets = ["agent.py"]\nport = 0\n')
    ran = parley("config", "check", "good.toml")
    assert (ran.status, ran.stdout) == (0, "good.toml: 2 settings, no problem\n")
    for name in [each for each in os.environ if each.startswith("PARLEY_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PARLEY_CONFIG", "bad.toml")
    monkeypatch.setenv("PARLEY_MAX_STREAM", "1")
    monkeypatch.setenv("PARLEY_AGENT_SERVICE_HOST", "10.0.0.1")
    (folder / "bad.toml").write_text("prot = 1\nmax_parts = 0\n")
    ran = parley("config", "check", "-o", "json")
    assert ran.status == 1
    assert len(ran.document["problems"]) == 2
    [warning] = ran.document["warnings"]
    assert "PARLEY_MAX_STREAM is set, and nothing reads it; the nearest is" in warning
    assert "PARLEY_MAX_STREAMS" in warning


@pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")
def test_sighup_reloads_limits_and_the_log_level_but_no_wrong_file(folder: Path) -> None:
    port, file = free_port(), folder / "parley.toml"
    base = f'targets = ["agent.py"]\nport = {port}\nstore = "memory:"\n'

    def say() -> int:
        message = {"messageId": secrets.token_hex(4), "role": "ROLE_USER", "parts": [{"text": "a"}]}
        url, headers = f"http://127.0.0.1:{port}/message:send", {"A2A-Version": "1.0"}
        headers["Content-Type"] = "application/json"
        body = json.dumps({"message": message}).encode()
        try:
            with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            error.close()
            return error.code

    def reload(more: str, said: str) -> str:
        file.write_text(base + more)
        server.process.send_signal(signal.SIGHUP)
        return server.until(said)

    file.write_text(f'{base}log_level = "warning"\n')
    with Running(["serve"], folder) as server:
        server.until("Ctrl-C stops")
        assert (say(), say()) == (200, 200)
        reload('limits = ["1/day"]\nlog_level = "warning"\n', "reloaded: limits = 1/day")
        assert (say(), say()) == (200, 429)
        reload('limits = ["900/day"]\nlog_level = "info"\n', "reloaded: limits = 900/day")
        assert "log_level = info" in server.stderr
        assert say() == 200
        server.until("'say' replied")
        wrong = 'limits = ["1/day"]\nmax_part = 1\n'
        reload(wrong, "parley.toml:5: unknown setting 'max_part'; the nearest is max_parts")
        server.until("reloaded: nothing has changed")
        assert say() == 200
        same = 'limits = ["900/day"]\nlog_level = "info"\nmax_parts = 9\n'
        reload(same, "max_parts (parley.toml:6) changed, and needs a restart")
        reload('limits = ["artifact 1 MB"]\nlog_level = "info"\n', "needs a restart: turns are not")
        assert say() == 200
        assert server.end(signal.SIGTERM) == 0


@pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")
def test_sighup_reads_keys_again_and_a_closed_terminal_ends_the_server(
    folder: Path, parley: Any
) -> None:
    words = ["serve", "agent.py", "--port", "0", "--signing-keys", "keys.json"]
    assert parley("keys", "generate", "keys.json").status == 0
    with Running(words, folder) as server:
        server.until("Ctrl-C stops")
        assert parley("keys", "rotate", "keys.json").status == 0
        server.process.send_signal(signal.SIGHUP)
        server.until("reloaded: signing keys ")
        assert server.end(signal.SIGTERM) == 0
    with At(words, folder) as terminal:
        terminal.until("Ctrl-C stops")
        assert terminal.hang_up() == 0
