"""The API for authors of agents, and the calls of their functions."""
