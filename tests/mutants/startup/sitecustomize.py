"""Loaded by every Python process that a test starts in a mutant run."""

import contextlib

with contextlib.suppress(ImportError):
    from tests.mutants.loading import from_environment

    from_environment()
