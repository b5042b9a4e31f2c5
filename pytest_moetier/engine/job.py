"""What the worker is told, as JSON on its command line's file, and what it answers: the only words between the two."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from pytest_moetier.errors import HarnessError

LOAD_MODES = ("mmap", "direct_io")
GATES = ("ready", "decode", "end")
"""Where the worker captures counters, says so, and waits for a line on its standard input before it goes on.

``ready``: loaded, warmed up (every buffer of the computation touched), nothing of the job's own tokens decoded.
``decode``: the prompt is decoded, its first token chosen. ``end``: the last token is chosen.
"""


@dataclass(frozen=True, slots=True)
class Slabs:
    """Where a layer's experts are in the model's files: one entry a tensor, as ``pool.manifest`` has them.

    Attributes:
        layer: number of the layer, as the engine names it.
        file: of each tensor, index into the job's ``files``.
        offset: of expert 0, in bytes.
        stride: bytes from one expert to the next.
        length: bytes of one expert.
    """

    layer: int
    file: tuple[int, ...]
    offset: tuple[int, ...]
    stride: tuple[int, ...]
    length: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Job:
    """One run of the engine.

    Attributes:
        files: the model's files, the first of them is what the engine is told to load.
        layers: slabs of every layer with routed experts.
        k: experts chosen a token and layer; a record of another width is not a choice.
        experts: of a layer.
        prompt: token ids, or text that the model's own vocabulary makes into ids.
        tokens: how many to generate, greedily.
        context: tokens that the context holds.
        threads: of the computation.
        load_mode: one of ``LOAD_MODES``; all but one measurement of failure use ``mmap``.
        policy: of ``arm.POLICIES``.
        lock_spine: mlock what is no routed expert.
        capture: report every choice of the router.
        logits: report a recomputation of every choice from the router's logits as well.
        capture_paths: kernel files to read at each gate.
    """

    files: tuple[str, ...]
    layers: tuple[Slabs, ...]
    k: int
    experts: int
    prompt: tuple[int, ...] | str
    tokens: int
    context: int = 512
    threads: int = 2
    load_mode: str = LOAD_MODES[0]
    policy: str = "plain"
    lock_spine: bool = False
    capture: bool = False
    logits: bool = False
    capture_paths: tuple[str, ...] = ()

    def write(self, path: Path) -> None:
        """Write it for the worker."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Job:
        """Return the job in a file that ``write`` wrote.

        Raises:
            HarnessError: it is not such a file.
        """
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
            layers = [
                Slabs(row.pop("layer"), **{name: tuple(part) for name, part in row.items()}) for row in fields["layers"]
            ]
            listed = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
            return cls(**{**fields, **listed, "layers": tuple(layers)})
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise HarnessError(f"{path} is not a job ({error})", "what the engine's lab wrote") from error
