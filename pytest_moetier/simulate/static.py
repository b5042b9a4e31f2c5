"""Tables of static pinning: which experts are held for good, by how often a training window chose them (section 6).

The first experts of the table that fit are held from the start; nothing else is ever admitted. What is read to fill the
cache is not counted: it is read before the window. Whoever trains a table on the very trace that is scored has an
oracle, which no deployment has; it is labelled so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from pytest_moetier.errors import InputError
from pytest_moetier.simulate.streams import LAYER
from pytest_moetier.simulate.window import Window
from pytest_moetier.simulate.workload import I64, U64, Workload

TRAIN, OWN = "train", "own"


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """How often each expert was chosen in a training window.

    Attributes:
        counts: per object.
        words: what it was trained on.
        layers: of the model it was trained on.
        n_experts: likewise.
        shape: likewise, in words.
        oracle: it was trained on the trace that it is scored on, the scored window included.
    """

    counts: I64
    words: str
    layers: tuple[int, ...]
    n_experts: int
    shape: str
    oracle: bool = False

    def reach(self, workload: Workload, allocation: str, sizes: U64 | None) -> U64:
        """Return for each object the capacity from which on it is held.

        That is what it and all before it in the table take; ties go by layer, then id. ``layer``: each layer has a
        table of its own.

        Raises:
            InputError: the table is of another model.
        """
        if (self.layers, self.n_experts) != (workload.layers, workload.n_experts):
            raise InputError(
                f"the table of {self.words} is of another model: it has {self.shape}, {workload.source} has "
                f"{workload.shape}",
                "a table trained on a trace of the same model",
                "--experts, where a file does not state the experts per layer",
            )
        rows = workload.n_layers if allocation == LAYER else 1
        ranked = np.argsort(-self.counts.reshape(rows, -1), axis=1, kind="stable")
        takes = (np.ones(len(self.counts), dtype=np.uint64) if sizes is None else sizes).reshape(rows, -1)
        found = np.empty(takes.shape, dtype=np.uint64)
        np.put_along_axis(found, ranked, np.cumsum(np.take_along_axis(takes, ranked, axis=1), axis=1), axis=1)
        return found.reshape(-1)


def trained(workload: Workload, window: Window | None = None) -> Table:
    """Return the table of a workload: of the whole, or of what the window leaves to warm on.

    Raises:
        InputError: the window warms on nothing.
    """
    accesses = workload.n_accesses
    words = f"the whole of {workload.source}"
    if window is not None:
        accesses = int(workload.iteration_bounds()[window.first])
        words = f"the warm part of {workload.source}"
        if not accesses:
            raise InputError(
                f"the window {window.name} leaves nothing to train a table on",
                "a part that warms",
                "--window fair, or --table own (an oracle) or --table FILE",
            )
    counts = np.bincount(workload.key[:accesses], minlength=workload.n_objects).astype(np.int64, copy=False)
    return Table(counts, words, workload.layers, workload.n_experts, workload.shape)


def table_for(workload: Workload, window: Window, table: Table | str | None) -> Table:
    """Return the table that a simulation asks for: a given one, ``train`` (the default) or ``own``, the oracle.

    Raises:
        InputError: an unknown word, or nothing to train on.
    """
    if isinstance(table, Table):
        return table
    if table in {None, TRAIN}:
        return trained(workload, window)
    if table == OWN:
        return replace(trained(workload.cut(window.end)), oracle=True)
    raise InputError(f"--table {table}", f"{TRAIN}, {OWN} or a trace file")
