"""The registry: a catalogue of agents, found by need (Agentic Resource Discovery)."""
