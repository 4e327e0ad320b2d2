"""What clients can make the server hold, and for how long: bytes, calls, unread answers."""
