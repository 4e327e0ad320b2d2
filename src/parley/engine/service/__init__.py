"""The operations of A2A on a local agent."""
