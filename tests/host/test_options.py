"""The options of a server: each is declared once, and everything else is made of that."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

import parley
from parley import Agent, Settings
from parley.cli.settings.server import FLAGS, server_settings
from parley.host.options import AppKeywords, ServeKeywords, ServerOptions, options_of
from parley.security import ApiKey
from parley.security.egress import Egress
from tests.house.options_page import PAGE, page


def test_keywords_are_the_options_and_each_is_documented() -> None:
    fields = set(ServerOptions.__struct_fields__)
    assert fields == set(ServeKeywords.__annotations__) | set(AppKeywords.__annotations__)
    assert fields == set(options_of(ServerOptions))
    assert all(option.help for option in options_of(ServerOptions).values())


def test_the_page_about_the_options_is_made_of_them() -> None:
    assert PAGE.read_text("utf-8") == page(), "python tests/house/options_page.py --write"


def test_flags_and_variables_have_one_meaning() -> None:
    flags = [flag for _, flag in FLAGS.values()]
    for names in ([flag.flag for flag in flags], [f.variable for f in flags if f.variable]):
        assert len(names) == len(set(names))
    # Kubernetes sets PARLEY_PORT and PARLEY_SERVICE_HOST for a service of that name.
    taken = {"PARLEY_PORT", "PARLEY_SERVICE_HOST", "PARLEY_SERVICE_PORT", "PARLEY_REGISTRY"}
    assert not taken & {flag.variable for flag in flags}


@pytest.mark.parametrize(
    ("name", "given", "read"),
    [
        ("drain", "1m", 60.0),
        ("lease", "500ms", 0.5),
        ("audit_retention", "400d", timedelta(days=400)),
        ("migrate", True, False),
        ("hsts_max_age", True, 0),
        ("allow_private_agents", True, True),
        ("limits", ["60/minute"], ("60/minute",)),
        ("restrict", ["docs=authenticated"], {"docs": "authenticated"}),
        ("role", "api", "api"),
        ("grpc_port", 0, 0),
        ("usage", False, None),
        ("url", "", None),
    ],
)
def test_a_flag_is_read_as_the_type_of_its_option(name: str, given: Any, read: Any) -> None:
    value = FLAGS[name][1].read(given)
    assert (value, type(value)) == (read, type(read))


def test_an_iterator_is_read_once() -> None:
    options = ServerOptions(limits=iter(["60/minute"]), allow_private_files=iter(["10.0.0.1"]))  # type: ignore[arg-type]
    assert (options.limits, options.allow_private_files) == (("60/minute",), ("10.0.0.1",))


def test_unknown_and_contradicting_options_are_refused() -> None:
    agent = Agent("Plain")
    with pytest.raises(TypeError, match="stores"):
        parley.asgi(agent, stores="memory:")  # type: ignore[call-arg]
    for name, value in {"port": 8000, "tls_cert": "cert.pem", "allow_anonymous": True}.items():
        with pytest.raises(TypeError, match=f"asgi takes no {name}: give it to parley.serve"):
            parley.asgi(agent, **{name: value})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="but not both"):
        parley.asgi(agent, caller=lambda scope: parley.Caller(id="ada"), auth=ApiKey())
    with pytest.raises(ValueError, match="'both', 'api' or 'worker'"):
        parley.asgi(agent, role="all")  # type: ignore[arg-type]


def test_the_record_for_the_audit_has_no_secret() -> None:
    record = ServerOptions(
        store="postgresql://ada:hunter2@db/tasks",
        bus="redis://:hunter2@bus",
        secret_key="hunter2" * 8,
        policy=lambda access: True,
        egress=Egress.of(deny=["*.example.net"]),
        tenants={"acme": Agent("Shop")},
        limits=("60/minute",),
        settings=Settings(max_parts=7),
    ).record()
    assert "hunter2" not in str(record)
    assert record["secret_key"] is record["policy"] is True
    assert record["caller"] is record["url"] is None
    assert record["tenants"] == ["acme"]
    assert record["limits"] == ["60/minute"]
    assert record["settings"]["max_parts"] == 7
    assert "*.example.net" in record["egress"]
    assert set(record) == set(AppKeywords.__annotations__)


def test_settings_in_force_are_shown_with_their_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARLEY_STORE", "postgresql://ada:hunter2@db/tasks")
    monkeypatch.setenv("PARLEY_EGRESS_DENY", "*.example.net")
    monkeypatch.setenv("PARLEY_SIGNING_KEYS_FILE", "keys.json")
    shown = {name: (value, source) for name, value, source in server_settings()}
    assert shown["--store"] == ("postgresql://ada@db/tasks", "PARLEY_STORE")
    assert shown["--egress-deny"] == ("*.example.net", "PARLEY_EGRESS_DENY")
    assert shown["--signing-keys"] == ("keys.json", "PARLEY_SIGNING_KEYS_FILE")
    assert shown["--usage"] == ("no", "default")
    assert shown["--drain"] == ("10s", "default")
