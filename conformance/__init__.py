"""Runs the public conformance kits of A2A against Parley, and holds the outcome to what is known.

``python -m conformance`` runs them all; ``docs/reference/conformance.md`` has the results and the
reasons.
"""
