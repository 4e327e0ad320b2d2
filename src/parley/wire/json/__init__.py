"""Reading JSON from peers, in one of two tempers.

- **Requests are read strictly** (``protojson.read``): the caller gets every wrong field by name,
  and nothing runs.
- **Answers are read tolerantly** (``protojson.read_answer``): the agent has already run, so a wrong
  field is left out with a warning in the log, and the rest is kept.

In both, canonical JSON takes one fast pass of msgspec. Only what that rejects gets a second,
slower look: as any ProtoJSON (``protojson``), then as an exchange of texts from before 0.3
(``legacy``). ``problems`` has the words for wrong fields, and the likely meanings of these.
``wire.protobuf`` reports problems in the same words and paths.
"""
