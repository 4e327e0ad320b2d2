"""How a registry looks after agents: probes, what they measure, and heartbeats."""
