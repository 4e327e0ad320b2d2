"""What a registry reads: sites, catalogs, cards, signatures; each within limits."""
