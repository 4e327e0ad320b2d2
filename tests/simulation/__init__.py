"""A deterministic simulation of the engine: replicas, their store, their bus and their callers, on
an event loop whose order depends on a seed alone, with every possible fault.

The replicas are real hosts. The store is the reference (``MemoryTaskStore``) behind a connection
that delays, fails and forgets. The bus loses, repeats and reorders. Replicas are killed, paused,
cut off and drained. Every commit is checked against the rules of the log (L1-L7, E1-E6), every view
of a caller against the log, and at the end no work may be left.

Run it with ``python -m tests.simulation``, which can also replay a seed. ``mutations`` break the
engine on purpose: the simulation must detect each of them.
"""
