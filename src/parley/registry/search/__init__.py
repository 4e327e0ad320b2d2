"""How a registry finds and ranks: words, filters, facets, scores, meaning, marks."""
