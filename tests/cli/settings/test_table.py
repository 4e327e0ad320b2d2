"""Where a setting's value comes from, and what is said about one that makes no sense."""

import pytest

from parley.cli.output.failures import UsageFailure
from parley.cli.settings import sources as settings_sources
from parley.cli.settings.sources import SettingSource, parse, resolve, sources
from parley.cli.settings.table import SETTINGS


def settings(flags=None, **environment):
    return resolve(flags or {}, [SettingSource("environment", environment)])


def test_a_flag_counts_before_the_environment_before_files_before_the_default(
    tmp_path, monkeypatch
):
    home, project = tmp_path / "home", tmp_path / "project" / "deep"
    (home / ".config" / "a2a-cli").mkdir(parents=True)
    project.mkdir(parents=True)
    monkeypatch.setattr(settings_sources.Path, "home", lambda: home)
    own = home / ".config" / "a2a-cli" / ".env"
    own.write_text("A2ACLI_AGENT_CARD=global\nA2ACLI_CONTEXT_ID=global\nA2ACLI_BEARER=global\n")
    local = tmp_path / "project" / ".env"
    local.write_text("A2ACLI_AGENT_CARD=local\nA2ACLI_CONTEXT_ID=local\nOTHER=1\n")

    found = sources({"A2ACLI_AGENT_CARD": "environment"}, project, None)
    resolved = resolve({}, found)
    assert resolved.agent_card == "environment"
    assert resolved.sources["agent_card"] == "A2ACLI_AGENT_CARD"
    assert resolved.context_id == "local"
    assert resolved.sources["context_id"] == f"A2ACLI_CONTEXT_ID in {local}"
    assert resolved.bearer == "global"
    assert resolved.output == "text"
    assert resolved.sources["output"] == "default"
    assert resolve({"agent_card": "flag"}, found).agent_card == "flag"


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
    assert resolve({}, found).credential_redirect is None  # nobody asks the registry
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
        ("A2ACLI_TIMEOUT", "0", "no time at all"),
        ("A2ACLI_POLL_INTERVAL", "1ms", "too short"),
        ("A2ACLI_OUTPUT", "xml", "not one of text, json"),
        ("A2ACLI_INSECURE", "perhaps", "neither true nor false"),
        ("A2ACLI_HISTORY", "-1", "whole number"),
        ("A2ACLI_METADATA", "[]", "a JSON object is needed"),
        ("A2ACLI_METADATA", "{", "not JSON"),
        ("A2ACLI_METADATA", '{"a": NaN}', "NaN is not a JSON value"),
        ("A2ACLI_SVC_PARAM", "no colon", "name:value"),
        ("A2ACLI_A2A_VERSION", "1.1", "there are 1.0, 0.3"),
        ("A2ACLI_A2A_VERSION", "2.0", "there are 1.0, 0.3"),
        ("A2ACLI_A2A_VERSION", "one", "there are 1.0, 0.3"),
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


def test_every_setting_has_the_variable_that_its_flag_implies():
    names = {setting.name: setting.variable for setting in SETTINGS}
    assert names["agent-card"] == "A2ACLI_AGENT_CARD"
    assert names["a2a-version"] == "A2ACLI_A2A_VERSION"
    assert names["async"] == "A2ACLI_ASYNC"
    assert all(f"--{name}" in s.spellings for name, s in zip(names, SETTINGS, strict=True))


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
