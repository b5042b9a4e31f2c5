"""Other JSON lines and JSON documents of engines."""
