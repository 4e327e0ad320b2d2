"""Reading JSON from peers, in a strict and in a tolerant mode.

- **Requests are read strictly** (``protojson.read``): the caller gets an error with every wrong
  field, and nothing runs.
- **Answers are read tolerantly** (``protojson.read_answer``): the agent has already run, so a wrong
  field is left out with a warning in the log, and the rest is kept.

In both modes, canonical JSON takes one fast pass of msgspec. Only JSON that this pass rejects gets
a second, slower look: as any ProtoJSON (``protojson``), then as a message of a specification before
0.3 (``legacy``). ``problems`` describes wrong fields, and guesses their likely meanings.
``wire.protobuf`` reports problems in the same words and paths.
"""
