"""The health of agents: probes, their measurements, and heartbeats."""
