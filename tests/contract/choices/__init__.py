"""The choices that Parley makes where the specification allows several readings.

``docs/reference/specification-choices.md`` lists the choices. Each choice has a test here that
carries its number, except the choices that any client can check on any server: these are
requirements of ``parley conformance server``. Further tests check exact bytes on the wire. Tests
build their requests from bytes (see ``wire.py``), so that no client of ours corrects a mistake.
"""
