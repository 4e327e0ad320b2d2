"""Signs the trust manifests of catalog entries (AI Catalog, "Trust Manifest Signatures")."""

from __future__ import annotations

from typing import Any

import msgspec

from parley.model.catalog.entries import TrustManifest
from parley.security.signing.canonical import canonical
from parley.security.signing.card_signing import JWKS_PATH
from parley.security.signing.keys import SigningKey, SigningKeys


def payload_of(manifest: TrustManifest) -> bytes:
    """Return what is signed of a manifest: its canonical JSON (RFC 8785) without the signature."""
    members: dict[str, Any] = msgspec.to_builtins(manifest)
    members.pop("signature", None)
    return canonical(members)


_MAX_KEPT = 10_000


class ManifestSigner:
    """Signs manifests with the first of the keys that sign now, each once.

    Signatures are kept, because a manifest is the same in the catalogs of all addresses, and
    requests choose these.

    ``url`` is the public address of the server, if the operator named it: then a signature says
    where the public keys are (``jku``). Without it, they are found at the identity's domain.
    """

    def __init__(self, keys: SigningKeys, url: str | None) -> None:
        self._keys = keys
        self._header = {"typ": "JOSE"}
        if url is not None:
            self._header["jku"] = url.rstrip("/") + JWKS_PATH
        self._kept: dict[bytes, str] = {}
        self._kept_of = 0

    @property
    def revision(self) -> int:
        """A number that changes with the keys."""
        return self._keys.revision

    @property
    def key(self) -> SigningKey:
        """The key that signs now."""
        return self._keys.signers[0]

    def sign(self, manifest: TrustManifest) -> TrustManifest:
        """Return the manifest with a detached JWS over the rest of it."""
        revision, payload = self.revision, payload_of(manifest)
        if revision != self._kept_of or len(self._kept) >= _MAX_KEPT:
            self._kept, self._kept_of = {}, revision
        signature = self._kept.get(payload)
        if signature is None:
            signature = self._kept[payload] = self.key.jws(self._header, payload, detached=True)
        return msgspec.structs.replace(manifest, signature=signature)
