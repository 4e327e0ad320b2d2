"""An MCP server over stdio: the diagnostic scanner, which reads the error codes of a car.

    python examples/car_repair_shop/scanner.py

The mechanic starts it. Codes that were cleared are noted in FOLDER.
"""

import os
from pathlib import Path

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

FOLDER = Path(os.environ.get("FOLDER", "."))
CODES = {"XYZ123": ["P0300"], "ABC789": []}
"""What the cars that come here say, before they are repaired."""

server = MCPServer("Diagnostic scanner")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def scan_vehicle_for_error_codes(vehicle_id: str) -> list[str]:
    """Read the error codes of a car."""
    if vehicle_id not in CODES:
        raise ToolError(f"no car {vehicle_id} is connected; there are {', '.join(CODES)}")
    return [] if cleared(vehicle_id).exists() else CODES[vehicle_id]


@server.tool(annotations=ToolAnnotations(idempotent_hint=True))
def clear_error_codes(vehicle_id: str) -> str:
    """Clear the error codes of a car that was repaired."""
    if vehicle_id not in CODES:
        raise ToolError(f"no car {vehicle_id} is connected")
    cleared(vehicle_id).touch()
    return "cleared"


def cleared(vehicle_id: str) -> Path:
    """Return the file that is there once the codes of a car are cleared."""
    return FOLDER / f"{vehicle_id}.cleared"


if __name__ == "__main__":
    server.run("stdio")
