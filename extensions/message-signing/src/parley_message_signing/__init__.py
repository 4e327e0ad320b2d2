"""Signatures of messages and artifacts: JWS (RFC 7515) over canonical JSON (RFC 8785); see v1.md.

Agent("Bank", extensions=[MessageSigning("keys.json", trust=keys_of_callers)])
verdict = await verify(answer.artifacts[0], card=remote.card)
"""

from parley_message_signing.extension import MessageSigning
from parley_message_signing.signed import URI, Signature
from parley_message_signing.verifying import SignatureInvalid, Verdict, verify

__all__ = ["URI", "MessageSigning", "Signature", "SignatureInvalid", "Verdict", "verify"]
