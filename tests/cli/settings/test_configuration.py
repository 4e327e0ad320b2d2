"""Settings: their sources, and the errors about invalid values."""

import os

import pytest

from parley.cli.output.failures import UsageFailure
from parley.cli.settings import sources as settings_sources
from parley.cli.settings.sources import SettingSource, parse, resolve, sources
from parley.model.option import format_duration, parse_duration
from tests.cli.scripted import TASK_ID, Answer, task


def test_every_default_is_there_shown_and_overridable(parley, agent, monkeypatch):
    """A2ACLI_DEFAULT_001"""
    shown = " ".join(parley("send", "--help").stdout.split())
    for default in (
        "[default: http://127.0.0.1:9999]",
        "[default: the card's own order]",
        "[default: wait for the task]",
        "[default: text]",
        "[default: concise]",
        "[default: 1.0]",
        "[default: certificates are checked]",
        "[default: 2s]",
    ):
        assert default in shown
    for flag in ("--transport", "--async", "--output", "--verbose", "--a2a-version", "--insecure"):
        assert flag in shown
    monkeypatch.setenv("A2ACLI_OUTPUT", "json")
    shown = " ".join(parley("send", "--help").stdout.split())
    assert "[default: json, from A2ACLI_OUTPUT]" in shown
    agent.says("GetTask", Answer(result=task()))
    assert parley("task", "get", TASK_ID, "-a", agent.url).document == task()
    assert "State: " in parley("task", "get", TASK_ID, "-a", agent.url, "-o", "text").stdout


def test_configuration_is_found_shown_and_never_written(parley, tmp_path, monkeypatch):
    """A2ACLI_CONFIG_001 A2ACLI_CONFIG_002"""
    own = tmp_path / ".config" / "a2a-cli" / ".env"
    own.parent.mkdir(parents=True)
    own.write_text("A2ACLI_BEARER=s3cret\nA2ACLI_AGENT_CARD=global.example\n")
    own.chmod(0o600)
    local = tmp_path / ".env"
    local.write_text("A2ACLI_AGENT_CARD=local.example\nA2ACLI_TIMEOUT=1m\nA2ACLI_TYPO=1\n")
    local.chmod(0o644)
    monkeypatch.setenv("A2ACLI_TIMEOUT", "90s")
    before = {path: path.read_text() for path in (own, local)}
    ran = parley("config", "show", "-o", "json")
    assert ran.status == 0
    settings = {row["name"]: row for row in ran.document["settings"]}
    assert settings["agent-card"]["value"] == "local.example"
    assert settings["agent-card"]["source"] == f"A2ACLI_AGENT_CARD in {local}"
    assert settings["timeout"] == {"name": "timeout", "value": "90s", "source": "A2ACLI_TIMEOUT"}
    assert settings["bearer"]["value"] == "set, not shown"
    assert settings["poll-interval"]["source"] == "default"
    assert ran.document["files"] == [str(local), str(own)]
    assert {path: path.read_text() for path in (own, local)} == before

    ran = parley("config", "show", "--timeout", "5s")
    assert "timeout: 5s (flag)\n" in ran.stdout
    assert "A2ACLI_TYPO is set, but is not a known setting" in ran.stderr
    assert "other users can read" not in ran.stderr
    assert "s3cret" not in ran.stdout


@pytest.mark.skipif(os.name != "posix", reason="file modes say nothing here")
def test_one_file_does_not_name_another(parley, tmp_path, monkeypatch):
    """The second file would not be read, although ``config show`` would list the setting."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / ".env"
    file.write_text("A2ACLI_CONFIG=other.env\n")
    (tmp_path / "other.env").write_text("A2ACLI_TIMEOUT=20s\n")
    ran = parley("config", "show")
    assert ran.status == 2
    assert f"{file} sets A2ACLI_CONFIG, but one .env file cannot name another" in ran.stderr
    assert parley("config", "show", "--config", "other.env").field("timeout").startswith("20s")
    assert "Usage" in parley("send", "--help").stdout


def test_a_file_of_credentials_that_others_can_read_is_warned_of(parley, tmp_path):
    """A2ACLI_CONFIG_001"""
    (tmp_path / ".env").write_text("A2ACLI_API_KEY=k\n")
    (tmp_path / ".env").chmod(0o644)
    assert "other users can read it; chmod 600" in parley("config", "show").stderr
    (tmp_path / ".env").chmod(0o600)
    assert parley("config", "show").stderr == ""


@pytest.mark.slow
def test_help_and_version_print_and_end(parley, monkeypatch):
    """A2ACLI_CLI_001"""
    for words in (("--help",), ("-h",), ("help",), ()):
        ran = parley(*words)
        assert ran.status == 0
        assert ran.stdout.startswith("Usage: parley ")
    for command in ("serve", "demo", "card get", "send", "task get", "task list", "task cancel",
                    "task subscribe", "task authorize", "catalog show", "catalog check",
                    "catalog dns", "config show", "help"):  # fmt: skip
        shown = parley(*command.split(), "--help")
        assert shown.status == 0
        assert shown.stdout.startswith(f"Usage: parley {command} ")
        assert max(map(len, shown.stdout.splitlines())) <= 80
        if command != "help":
            assert parley("help", *command.split()).stdout == shown.stdout
    for words, said in (
        (["sned"], "Did you mean 'send'?"),
        (["task", "lst"], "Did you mean 'list'?"),
        (["send", "hi"], "hint: parley help send shows its usage"),
    ):
        assert said in (ran := parley("help", *words)).stderr
        assert ran.status == 2
    for flag in ("-v", "--version"):
        ran = parley(flag)
        assert ran.status == 0
        assert ran.stdout.startswith("parley 0.")


def test_settings_may_stand_before_the_command(parley, agent):
    agent.says("GetTask", Answer(result=task()))
    ran = parley("-a", agent.url, "-ojson", "--timeout=20s", "--verbose", "task", "get", TASK_ID)
    assert ran.document == task()


# -- the source of a setting's value, and the errors about invalid values --------------------------


def settings(flags=None, **environment):
    return resolve(flags or {}, [SettingSource("environment", environment)])


def test_config_takes_the_place_of_the_local_file(tmp_path, monkeypatch):
    monkeypatch.setattr(settings_sources.Path, "home", lambda: tmp_path / "nobody")
    (tmp_path / ".env").write_text("A2ACLI_AGENT_CARD=local\n")
    (tmp_path / "prod.env").write_text("A2ACLI_AGENT_CARD=prod\n")
    found = sources({}, tmp_path, str(tmp_path / "prod.env"))
    assert resolve({}, found).agent_card == "prod"
    with pytest.raises(UsageFailure, match=r"gone\.env cannot be read"):
        sources({}, tmp_path, str(tmp_path / "gone.env"))


@pytest.mark.parametrize("name", ["PARLEY_REGISTRY_BEARER", "PARLEY_REGISTRY_API_KEY"])
def test_a_found_file_does_not_decide_how_a_registry_gets_its_credentials(
    tmp_path, monkeypatch, name
):
    monkeypatch.setattr(settings_sources.Path, "home", lambda: tmp_path / "nobody")
    (tmp_path / ".env").write_text("A2ACLI_PROXY=http://elsewhere.example:3128\n")
    found = sources({name: "secret"}, tmp_path, None)
    redirect = resolve({}, found, asks_registry=True).credential_redirect
    assert redirect is not None
    assert "for the registry is not from this file" in str(redirect)
    assert resolve({}, found).credential_redirect is None  # the registry is not asked
    assert resolve({"agent_card": "urn:air:a.example:b"}, found).credential_redirect is not None


def test_a_password_in_the_address_of_any_agent_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(settings_sources.Path, "home", lambda: tmp_path / "nobody")
    (tmp_path / ".env").write_text("A2ACLI_PROXY=http://elsewhere.example:3128\n")
    found, first = sources({}, tmp_path, None), {"agent_card": "a.example"}
    assert resolve(first, found, agents=["a.example"]).credential_redirect is None
    agents = ["a.example", "https://ada:secret@b.example"]
    assert resolve(first, found, agents=agents).credential_redirect is not None


def test_streaming_is_never_read_from_the_environment():
    assert settings(A2ACLI_STREAM="true").stream is False
    assert settings({"stream": True}).stream is True


def test_the_stronger_of_wait_and_async_wins():
    assert settings({"wait": True}, A2ACLI_ASYNC="1").async_ is False
    assert settings({"async": True}, A2ACLI_WAIT="1").async_ is True
    with pytest.raises(UsageFailure, match="contradict"):
        settings({"wait": True, "async": True})


@pytest.mark.parametrize(
    ("variable", "value", "word"),
    [
        ("A2ACLI_TIMEOUT", "soon", "A2ACLI_TIMEOUT: 'soon' is not a duration"),
        ("A2ACLI_TIMEOUT", "0", "a time limit of zero"),
        ("A2ACLI_POLL_INTERVAL", "1ms", "too short"),
        ("A2ACLI_OUTPUT", "xml", "not one of text, json"),
        ("A2ACLI_INSECURE", "perhaps", "neither true nor false"),
        ("A2ACLI_HISTORY", "-1", "whole number"),
        ("A2ACLI_METADATA", "[]", "a JSON object is needed"),
        ("A2ACLI_METADATA", "{", "not JSON"),
        ("A2ACLI_METADATA", '{"a": NaN}', "NaN is not a JSON value"),
        ("A2ACLI_SVC_PARAM", "no colon", "name:value"),
        ("A2ACLI_A2A_VERSION", "1.1", "the versions are 1.0, 0.3"),
        ("A2ACLI_A2A_VERSION", "2.0", "the versions are 1.0, 0.3"),
        ("A2ACLI_A2A_VERSION", "one", "the versions are 1.0, 0.3"),
    ],
)
def test_a_value_that_makes_no_sense_is_named_with_its_place(variable, value, word):
    with pytest.raises(UsageFailure) as failure:
        settings(**{variable: value})
    assert word in failure.value.message
    assert failure.value.message.startswith(variable)


def test_values_are_read_in_the_forms_that_people_write():
    resolved = settings(
        {"svc_param": ["x-trace:a,b: c"], "a2a_version": "1"},
        A2ACLI_TRANSPORT="grpc, jsonrpc",
        A2ACLI_TIMEOUT="none",
        A2ACLI_POLL_INTERVAL="500ms",
        A2ACLI_METADATA='{"skill": "x"}',
        A2ACLI_VERBOSE="on",
    )
    assert resolved.transport == ("grpc", "jsonrpc")
    assert resolved.svc_param == ("x-trace:a,b: c",)
    assert resolved.timeout is None
    assert resolved.poll_interval == 0.5
    assert resolved.metadata == {"skill": "x"}
    assert resolved.verbose is True
    assert resolved.a2a_version == "1.0"


def test_a_dotenv_file_is_read_as_people_write_it():
    assert parse(
        """
        # A2ACLI_BEARER=commented
        OTHER=1
        export A2ACLI_AGENT_CARD = http://host:1/ # the agent
        A2ACLI_BEARER="a \\"quoted\\" # token"
        A2ACLI_SVC_PARAM="a:1\\nb:2"
        A2ACLI_API_KEY='as $it is'
        not a setting
        """
    ) == {
        "A2ACLI_AGENT_CARD": "http://host:1/",
        "A2ACLI_BEARER": 'a "quoted" # token',
        "A2ACLI_SVC_PARAM": "a:1\nb:2",
        "A2ACLI_API_KEY": "as $it is",
    }


# -- durations -------------------------------------------------------------------------------------


@pytest.mark.parametrize("written", ["2s", "500ms", "1m", "90s", "2h", "1.5s"])
def test_a_duration_is_shown_as_it_is_read(written):
    assert parse_duration(format_duration(parse_duration(written))) == parse_duration(written)
