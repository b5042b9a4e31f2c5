"""Formats that name no selections, which cannot be replayed: recognised, and refused with that reason."""
