"""Several agents on one server, each under a path of its own, with a card of its own.

python examples/several_agents.py
parley send -a http://localhost:9999/time "What time is it in Tokyo?"
parley send -a http://localhost:9999/boats "Draw a sailboat"
"""

import flight_booking
import parley
import sailboat
import time_agent

AGENTS = {"/time": time_agent.agent, "/boats": sailboat.agent, "/flights": flight_booking.agent}

if __name__ == "__main__":
    parley.serve(AGENTS, port=9999)
