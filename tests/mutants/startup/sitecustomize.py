"""Loaded by every Python process that a test starts while mutants are tried."""

import contextlib

with contextlib.suppress(ImportError):
    from tests.mutants.loading import from_environment

    from_environment()
