"""Reports in files contain no credentials."""

from __future__ import annotations

from pathlib import Path

import pytest

from parley.cli.output.redaction import Redactor
from parley.cli.output.streams import Output
from parley.conformance.commands import Trial, _finish
from parley.conformance.report import ConformanceReport
from parley.conformance.verdicts import ConformanceRequirement, Verdict


@pytest.mark.parametrize("is_json", [False, True])
@pytest.mark.parametrize("suffix", ["json", "html"])
def test_a_token_that_a_server_repeats_is_in_no_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], suffix: str, is_json: bool
) -> None:
    output = Output(is_json=is_json, redact=Redactor(("secret-token-of-ada",)))
    file = tmp_path / f"report.{suffix}"
    requirement = ConformanceRequirement(id="CARD-1", level="MUST", section="8.2", title="A card")
    verdict = Verdict(
        requirement=requirement,
        where="the card",
        outcome="failed",
        reason="it says secret-token-of-ada",
        evidence="< secret-token-of-ada",
    )
    made = ConformanceReport(kind="server", subject="secret-token-of-ada", verdicts=(verdict,))
    _finish(output, made, Trial(report=file), verbose=True)
    assert "secret-token" not in file.read_text() + capsys.readouterr().out
