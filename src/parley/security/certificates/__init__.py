"""Client certificates: whom they name, by handshake or by a proxy's header."""
