"""Settings are checked when they are made."""

import pytest

from parley.server.app import Settings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_body_bytes", 0),
        ("max_body_bytes", "10MB"),
        ("max_body_bytes", True),
        ("max_body_bytes_held", 1024),
        ("max_body_bytes_held", None),
        ("address_share", 0),
        ("address_share", 1.5),
        ("max_unsent_bytes", 0),
        ("max_depth", 1),
        ("max_parts", 0),
        ("keep_alive", 0),
        ("keep_alive", -1),
        ("keep_alive", "15"),
        ("keep_alive", float("nan")),
        ("keep_alive", float("inf")),
        ("send_buffer", 10),
        ("head_timeout", 0),
        ("body_timeout", "1"),
        ("max_connections", 0),
        ("max_file_bytes", 0),
        ("max_file_bytes", 65 * 1024**3),
        ("inline_file_bytes", -1),
        ("max_file_transfers", 0),
        ("max_uploads", 0),
        ("max_upload_bytes", 1024),
        ("upload_timeout", 0),
        ("upload_timeout", 31 * 24 * 3600),
        ("file_link_timeout", "1d"),
        ("max_streams", 0),
        ("max_sockets", -1),
        ("max_sockets_per_address", 0),
        ("max_sockets_per_caller", 1.5),
        ("max_socket_message_bytes", -1),
        ("max_socket_message_bytes", 257 * 1024 * 1024),
        ("socket_ping_interval", 0),
        ("socket_ping_timeout", "1s"),
        ("card_max_age", -1),
        ("card_max_age", 1.5),
        ("missing_version", "2.0"),
        ("missing_version", None),
        ("card", "2.0"),
        ("card", None),
        ("docs", "no"),
        ("trust_proxy", "yes"),
        ("cors_origins", "https://a.example"),
        ("cors_origins", ["https://a.example"]),
        ("cors_origins", ("a.example",)),
        ("cors_origins", ("https://a.example/",)),
        ("cors_origins", (7,)),
        ("allowed_hosts", "a.example"),
        ("allowed_hosts", ["a.example"]),
        ("allowed_hosts", ("",)),
        ("allowed_hosts", ("https://a.example",)),
        ("allowed_hosts", ("a.example/",)),
        ("allowed_hosts", ("a.example:",)),
        ("allowed_hosts", ("a.example:99999",)),
        ("allowed_hosts", ("a b",)),
        ("allowed_hosts", ("ä.example",)),
        ("allowed_hosts", ("::1",)),
        ("allowed_hosts", ("[::1",)),
        ("allowed_hosts", ("*.",)),
        ("allowed_hosts", ("**",)),
        ("allowed_hosts", ("*example.com",)),
        ("allowed_hosts", ("a.*.example",)),
        ("allowed_hosts", ("*.*.example",)),
        ("allowed_hosts", ("*:80",)),
        ("allowed_hosts", (".",)),
        ("allowed_hosts", ("a..example",)),
        ("allowed_hosts", ("*..example",)),
        ("allowed_hosts", ("*.[::1]",)),
        ("allowed_hosts", (7,)),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_by_its_name(name, value):
    with pytest.raises(ValueError, match=f"the setting {name} takes "):
        Settings(**{name: value})


def test_settings_that_make_sense_are_kept():
    settings = Settings(
        max_body_bytes=1024,
        keep_alive=0.5,
        cors_origins=("*", "https://a.example:8443"),
        missing_version="1.0",
        allowed_hosts=("a.example", "*.a.example:80", "A:1", "[::1]:9", "10.0.0.1", "x_y", "*"),
        card_max_age=0,
    )
    assert settings.keep_alive == 0.5
    assert settings.max_parts == 1000
