"""The health of agents: probes, measurements, and heartbeats."""
