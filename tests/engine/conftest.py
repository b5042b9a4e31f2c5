"""A tiny model for the engine's tests, written once."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A generated olmoe of two layers with eight experts, of which a token uses two."""
    pytest.importorskip("xllamacpp")
    pytest.importorskip("gguf")
    from pytest_moetier.engine.synthetic import TINY, write_model  # noqa: PLC0415

    return write_model(tmp_path_factory.mktemp("model") / "tiny.gguf", TINY)
