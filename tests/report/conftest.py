"""The report that the recorded documents make (``recorded.py``)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from recorded_documents import FILES

from pytest_moetier.documents import Document, read_results
from pytest_moetier.page.write import write_page


@pytest.fixture(scope="session")
def documents() -> list[Document]:
    """The recorded documents, the oldest first."""
    assert len(FILES) == 3
    return read_results(FILES)


@pytest.fixture(scope="session")
def report(documents: list[Document], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the report of all recorded documents."""
    folder = tmp_path_factory.mktemp("report")
    write_page(documents, folder)
    return folder
