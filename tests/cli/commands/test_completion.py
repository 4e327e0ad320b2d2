"""``parley completion``: what shells complete."""

import os
import shutil
import subprocess
import sys

import pytest

BASH = shutil.which("bash")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "powershell"])
def test_a_script_for_each_shell_asks_the_command(parley, shell):
    """A2ACLI_CLI_002"""
    ran = parley("completion", shell)
    assert ran.status == 0
    assert "_PARLEY_COMPLETE" in ran.stdout


def test_other_shells_are_refused_with_those_that_there_are(parley):
    ran = parley("completion", "tcsh")
    assert ran.status == 2
    assert "bash, zsh, fish, powershell" in ran.stderr


@pytest.mark.skipif(BASH is None, reason="bash is not installed")
@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("parley ser", {"serve"}),
        ("parley task dow", {"download"}),
        ("parley send --sk", {"--skill"}),
        ("parley send -o ", {"text", "json"}),
        ("parley completion z", {"zsh"}),
    ],
)
def test_bash_completes_commands_options_and_choices(parley, tmp_path, words, found):
    """A2ACLI_CLI_002"""
    script = tmp_path / "completion.bash"
    script.write_text(parley("completion", "bash").stdout)
    program = tmp_path / "parley"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m parley "$@"\n')
    program.chmod(0o755)
    typed = words.split(" ")
    asked = (
        f"source {script}; COMP_WORDS=({' '.join(typed)} ''); COMP_CWORD={len(typed) - 1}; "
        '_parley_completion parley; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    ran = subprocess.run(
        [BASH, "-c", asked], env=environment, capture_output=True, text=True, timeout=60
    )
    assert set(ran.stdout.split()) == found, ran.stderr
