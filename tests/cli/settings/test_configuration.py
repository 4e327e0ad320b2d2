"""Defaults, configuration, and the help that tells of them."""

import os

import pytest

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
    assert "A2ACLI_TYPO is set, but there is no such setting" in ran.stderr
    assert "other users can read" not in ran.stderr
    assert "s3cret" not in ran.stdout


@pytest.mark.skipif(os.name != "posix", reason="file modes say nothing here")
def test_one_file_does_not_name_another(parley, tmp_path, monkeypatch):
    """It would not be read, and ``config show`` would say that it is."""
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
        (["send", "hi"], "hint: parley help send shows how to use it"),
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


def test_a_wrong_setting_is_told_in_the_format_that_was_asked_for(parley, monkeypatch):
    monkeypatch.setenv("A2ACLI_OUTPUT", "json")
    monkeypatch.setenv("A2ACLI_TIMEOUT", "soon")
    ran = parley("task", "get", "x")
    assert ran.error["code"] == "A2ACLI_ERR_USAGE"
    assert ran.error["message"].startswith("A2ACLI_TIMEOUT: ")
    assert parley("--help").status == 0
