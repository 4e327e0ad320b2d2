"""Conformance runs: test a server or a client against the A2A specification, and report the
verdicts.
"""
