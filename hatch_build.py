"""The readme of the distribution: its links lead somewhere on the package index too."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_RELATIVE = re.compile(r"(?<=\]\()(?![a-z]+:|#)")


class Readme(MetadataHookInterface):
    """Makes the links of README.md, which are relative to the repository, whole."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the readme."""
        text = (Path(self.root) / "README.md").read_text("utf-8")
        text = _RELATIVE.sub(f"{metadata['urls']['Source']}/blob/main/", text)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
