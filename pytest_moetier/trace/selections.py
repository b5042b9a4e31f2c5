"""The passes of a trace as rows of k ids: what statistics of routing are computed from (paper section 3).

A row is one layer's choice for one position. Rows come in the order issued; those of one layer are its passes in time.
An array in memory or a memory-mapped ``.npy`` serves alike: nothing here copies ids.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

PHASES = ("decode", "prefill", "all")


@dataclass(frozen=True, slots=True, eq=False)
class Selections:
    """Rows of k expert ids.

    Attributes:
        ids: flat, ``n_rows * k`` integers of any width, C order, possibly memory-mapped and read-only.
        row_layer: per row, the index of its layer in ``layers`` (u16); None: rows cycle through all layers in order.
        layers: the layer numbers of the source, ascending.
        n_experts: experts per layer (E).
        k: ids a row.
        phase: ``decode``, ``prefill`` or ``all`` (prompt first).
        order: how ids stand within a row, in words.
        synthetic: made by a generator.
        source: where it comes from, in words.
    """

    ids: NDArray[np.integer]
    row_layer: NDArray[np.uint16] | None
    layers: tuple[int, ...]
    n_experts: int
    k: int
    phase: str
    order: str
    synthetic: bool
    source: str

    @property
    def n_rows(self) -> int:
        """The number of rows."""
        return len(self.ids) // self.k
