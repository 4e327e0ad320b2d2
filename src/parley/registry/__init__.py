"""The registry: a catalogue of agents, searched by need (Agentic Resource Discovery, ARD)."""
