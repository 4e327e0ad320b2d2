"""Publishing in a registry: proofs of domains, published entries, audiences, decisions."""
