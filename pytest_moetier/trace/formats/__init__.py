"""Readers of trace files in the wild, each one function in the registry; importing this package registers all."""

from __future__ import annotations

from pytest_moetier.trace.formats import arrays, canonical, jsonl, moevm, refused, text
from pytest_moetier.trace.formats.registry import READERS, Reader, reader

__all__ = ["READERS", "Reader", "arrays", "canonical", "jsonl", "moevm", "reader", "refused", "text"]
