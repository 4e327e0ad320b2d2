"""Codecs: bytes in, model out. No I/O.

Bindings of ``server`` and ``client`` ask ``versions`` for a ``dialect``, and this for its codecs.
"""
