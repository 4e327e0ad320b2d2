"""Challenges: values of ``WWW-Authenticate`` (RFC 9110 §11.6.1)."""

from __future__ import annotations

from collections.abc import Sequence


def challenge(scheme: str, **parameters: str) -> str:
    """Return a challenge; parameters without a value are left out."""
    given = (f'{name}="{_quoted(value)}"' for name, value in parameters.items() if value)
    return f"{scheme} {', '.join(given)}".strip()


def bearer_challenge(*, error: str = "", scopes: Sequence[str] = (), **parameters: str) -> str:
    """Return the challenge for a bearer token (RFC 6750 §3)."""
    return challenge("Bearer", error=error, scope=" ".join(scopes), **parameters)


def with_parameter(challenge: str, name: str, value: str) -> str:
    """Return a challenge with one more parameter, which comes first."""
    scheme, _, parameters = challenge.partition(" ")
    return f'{scheme} {name}="{_quoted(value)}"' + (f", {parameters}" if parameters else "")


def _quoted(value: str) -> str:
    printable = "".join(char for char in value if " " <= char <= "~")
    return printable.replace("\\", "\\\\").replace('"', '\\"')
