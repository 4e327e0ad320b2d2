"""A deterministic simulation of the engine: replicas, their store, their bus and their callers, on
an event loop of which a seed decides everything, with everything going wrong that can.

The replicas are real hosts; the store is the reference (``MemoryTaskStore``) at the end of a wire
that delays, fails and forgets; the bus loses, repeats and reorders. Replicas die, stand still, are
cut off and drained. Every commit is held against the rules of the log (L1-L7, E1-E6), everything
that callers see against the log, and in the end everything must come to rest.

Run it with ``python -m tests.simulation``, which replays a seed as well. ``mutations`` break the
engine on purpose: each must be found.
"""
