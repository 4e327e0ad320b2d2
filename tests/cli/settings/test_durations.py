import pytest

from parley.cli.output.text import format_duration, parse_duration


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("2s", 2), ("500ms", 0.5), ("1m", 60), ("1m30s", 90), ("1h", 3600), ("0.5", 0.5), ("3", 3)],
)
def test_a_duration_is_read_in_seconds(written, seconds):
    assert parse_duration(written) == pytest.approx(seconds)


@pytest.mark.parametrize("written", ["", "s", "2 s", "-1s", "1d", "two", "1s2", "nan", "1e3"])
def test_what_is_no_duration_is_refused_with_an_example(written):
    with pytest.raises(ValueError, match="such as 2s"):
        parse_duration(written)


@pytest.mark.parametrize("written", ["2s", "500ms", "1m", "90s", "2h", "1.5s"])
def test_a_duration_is_shown_as_it_is_read(written):
    assert parse_duration(format_duration(parse_duration(written))) == parse_duration(written)
