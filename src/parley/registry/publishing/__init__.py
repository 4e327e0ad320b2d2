"""Who may publish in a registry: proofs of domains, pushed entries, audiences, decisions."""
