"""A registry of the agents that examples/catalog.py serves.

python examples/catalog.py
python examples/registry.py
parley agents search "rent a boat" --registry http://127.0.0.1:9010
parley send -a http://127.0.0.1:9010/a2a "find me an agent that knows the time"

parley registry serve has all of it as options, and keeps what it reads.
"""

from parley.registry.app.registry import Registry
from parley.server.run import run

CATALOGS = ["http://127.0.0.1:9999"]

if __name__ == "__main__":
    registry = Registry("memory:", sources=CATALOGS, publisher="registry.localhost")
    run(registry.app, port=9010)
