"""Reading JSON from peers, in one of two tempers.

- **Requests are read strictly** (``readers``): the caller gets every wrong field by name, and
  nothing runs.
- **Answers are read tolerantly** (``tolerance``): the agent has already run, so a wrong field is
  left out with a warning in the log, and the rest is kept.

In both, canonical JSON takes one fast pass of msgspec. Only what that rejects gets a second,
slower look: as any ProtoJSON (``readers``), then as an exchange of texts from before 0.3
(``legacy_requests``, ``legacy_answers``). ``protojson`` is the entry to the first two.
``wire.protobuf`` reports problems in the same words and paths.
"""
