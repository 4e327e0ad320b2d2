"""Tools for an agent's function: their sources, calls and results."""
