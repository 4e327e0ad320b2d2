"""Several agents behind one address: each caller's requests go to the agent of their tenant.

python examples/tenants.py
parley send -a http://localhost:9999/acme "What time is it in Tokyo?"
parley send -a http://localhost:9999/globex "What time is it in Tokyo?"
parley send -a http://localhost:9999/initech "Draw a sailboat"

Acme and Globex share an agent, and see nothing of each other.
"""

import parley
import sailboat
import time_agent

TENANTS = {"acme": time_agent.agent, "globex": time_agent.agent, "initech": sailboat.agent}

if __name__ == "__main__":
    parley.serve(tenants=TENANTS, port=9999)
