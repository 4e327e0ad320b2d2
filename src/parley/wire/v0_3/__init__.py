"""Version 0.3 of the protocol and of older texts, translated to the 1.0 data model at the edge.

``operations`` finds the operation by its method or path, and ``json``, ``http_json`` or ``grpc``
is the codec of the binding. JSON-RPC decodes into the structs of ``values``, whose ``to_model()``
gives the 1.0 request; answers take the same way back, from ``of()`` of these structs. HTTP+JSON and
gRPC read and write the types of 1.0 in the forms of ``proto``. ``operations`` and ``cards``
translate errors and cards.
"""
