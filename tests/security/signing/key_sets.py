"""Key sets for tests: in memory and as files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from joserfc.jwk import ECKey, OKPKey, RSAKey

_RSA: list[dict[str, Any]] = []  # key generation is slow


def private_jwk(alg: str = "ES256", /, **members: Any) -> dict[str, Any]:
    """Return a new private JWK; all RSA keys are the same."""
    if alg == "RS256":
        if not _RSA:
            _RSA.append(RSAKey.generate_key(2048).as_dict(private=True))
        made = _RSA[0]
    elif alg == "EdDSA":
        made = OKPKey.generate_key("Ed25519").as_dict(private=True)
    else:
        made = ECKey.generate_key("P-256").as_dict(private=True)
    return {**made, **members}


def key_set(*keys: dict[str, Any]) -> str:
    return json.dumps({"keys": list(keys) or [private_jwk()]})


def key_file(path: Path, *keys: dict[str, Any], mode: int = 0o600) -> Path:
    """Write a key file, and return its path."""
    path.write_text(key_set(*keys))
    path.chmod(mode)
    return path
