"""The executors of ``official.py``, unchanged, on Parley. The arguments are the same."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2] / "src"), str(Path(__file__).parents[1])]

from official import EXECUTORS, card_at
from processes import pin

import parley
from parley.integrations import a2a_sdk


def main(port: int, what: str, where: str) -> None:
    """Serve one of the agents."""
    agent = a2a_sdk.agent(EXECUTORS[what](), card_at(port))
    store = where if where == "memory:" else f"sqlite:///{where}"
    parley.serve(agent, port=port, store=store)


if __name__ == "__main__":
    pin(0)
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
