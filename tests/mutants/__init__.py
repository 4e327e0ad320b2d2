"""Mutants: small changes of the product, each of which some test should detect.

``make mutants ARGS=engine`` draws 500 random mutants of a room, runs for each of them tests that
reach the changed line, and reports the mutants that survive. ``make mutants ARGS=--reach`` comes
first: one run of all tests that records which of them reach which mutant.

- ``mutations.py`` lists the mutants of a module: the change, and the changed syntax tree.
- ``loading.py`` puts a mutant, or probes, into this process and into processes that tests start.
- ``reach.py`` is the pytest plugin that records which tests reach which mutants.
- ``runner.py`` runs tests against mutants, each in a fork of a process that has collected them.

The reason for our own runner: docs/internals/decisions/0018-mutants.md.
"""
