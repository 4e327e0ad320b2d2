"""Files by reference: up to an agent, and down from where it says."""
