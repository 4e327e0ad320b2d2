"""How a webhook knows its sender: one file for each scheme of ``authentication``.

The wire format is ``docs/extensions/push-proofs.md``.
"""
