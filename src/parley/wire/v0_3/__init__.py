"""Version 0.3 of the protocol, and older ones, translated to the 1.0 data model.

``operations`` finds the operation by its method or path, and ``json``, ``http_json`` or ``grpc`` is
the codec of the binding. JSON-RPC decodes into the structs of ``values``, whose ``to_model()``
gives the 1.0 request; ``of()`` of these structs translates answers back. HTTP+JSON and gRPC read
and write the types of 1.0 in the forms of ``proto``. ``operations`` and ``cards`` translate errors
and cards.
"""
