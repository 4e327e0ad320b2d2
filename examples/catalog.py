"""A server that publishes a catalog of its agents, for registries and for other agents.

python examples/catalog.py
parley catalog show localhost:9999
parley catalog check localhost:9999
parley send -a http://localhost:9999/time "What time is it in Tokyo?"

agent.localhost is a domain for one machine. On the Internet it is yours, with the public address:
parley.serve(AGENTS, publisher="example.com", url="https://agents.example.com")
"""

import flight_booking
import parley
import sailboat
import time_agent

AGENTS = {"/time": time_agent.agent, "/boats": sailboat.agent, "/flights": flight_booking.agent}
PUBLISHER = "agent.localhost"

if __name__ == "__main__":
    parley.serve(AGENTS, port=9999, publisher=PUBLISHER)
