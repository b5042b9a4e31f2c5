"""What the multi-generational LRU holds: the kernel's own account of its generations (paper section 5: reclaim).

``/sys/kernel/debug/lru_gen`` has, for each memory control group and node, one row a generation: its number, its age in
milliseconds, its anonymous and its file pages. Generations are made at the young end, where their number rises, and
reclaimed at the old end. The file with ``_full`` in its name has more rows below each, of tiers and page-table walks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest

from pytest_moetier.host import procfs

PATH = "/sys/kernel/debug/lru_gen"
MIN_GENERATIONS = 2
"""A node always has as many; its two youngest are never reclaimed from."""

_GENERATION_WORDS = 4


@dataclass(frozen=True, slots=True)
class Generation:
    """One generation of one node.

    Attributes:
        seq: its number, counted from 0 since the group was made.
        age_ms: milliseconds since it was made.
        anon_pages: anonymous pages in it.
        file_pages: file pages in it.
    """

    seq: int
    age_ms: int
    anon_pages: int
    file_pages: int


@dataclass(frozen=True, slots=True)
class NodeGenerations:
    """The generations of a group's pages on one node, oldest first.

    Attributes:
        node: its number.
        generations: at least two, their numbers rising by one.
    """

    node: int
    generations: tuple[Generation, ...]

    @property
    def max_seq(self) -> int:
        """The number of the youngest generation."""
        return self.generations[-1].seq

    @property
    def min_seq(self) -> int:
        """The number of the oldest generation, of either kind of page."""
        return self.generations[0].seq

    @property
    def min_file_seq(self) -> int:
        """The number of the generation that file pages are reclaimed from.

        Each kind of page has an oldest generation of its own, and the kernel writes only the lower of the two: without
        swap, anonymous pages hold on to a generation that file pages left long ago. An empty generation is given up, so
        the oldest one with file pages is theirs, and at the latest the second youngest.
        """
        return next((one.seq for one in self.generations[:-1] if one.file_pages), self.max_seq - 1)

    @property
    def file_pages(self) -> tuple[int, ...]:
        """File pages of each generation from ``min_file_seq`` on, oldest first."""
        return tuple(one.file_pages for one in self.generations if one.seq >= self.min_file_seq)

    @property
    def anon_pages(self) -> tuple[int, ...]:
        """Anonymous pages of each generation from ``min_seq`` on, oldest first."""
        return tuple(one.anon_pages for one in self.generations)


@dataclass(frozen=True, slots=True)
class GroupGenerations:
    """The generations of one memory control group.

    Attributes:
        path: below the root of the hierarchy: ``/`` is what belongs to no other group.
        nodes: those with memory.
    """

    path: str
    nodes: tuple[NodeGenerations, ...]

    @property
    def file_pages(self) -> tuple[int, ...]:
        """File pages by generation, the one that is reclaimed from first; those of all nodes added up, rank by rank."""
        return _added(node.file_pages for node in self.nodes)

    @property
    def anon_pages(self) -> tuple[int, ...]:
        """Anonymous pages by generation, oldest first; those of all nodes added up, rank by rank."""
        return _added(node.anon_pages for node in self.nodes)


@dataclass(frozen=True, slots=True)
class Generations:
    """All groups at one moment.

    Attributes:
        groups: as the kernel lists them, parents before their children.
        cut: whether the text ended early; the group that it ended in is left out, since its pages are not all told.
    """

    groups: tuple[GroupGenerations, ...]
    cut: bool

    def of(self, path: str) -> GroupGenerations | None:
        """Return the group at ``path`` below the root of the hierarchy, None where it is not told."""
        return next((one for one in self.groups if one.path == path), None)

    def file_pages_by_generation(self, path: str) -> tuple[int, ...] | None:
        """Return the file pages of a group by generation, the one that is reclaimed from first; None: not told."""
        group = self.of(path)
        return None if group is None else group.file_pages


def read() -> Generations | None:
    """Return the generations now, None where there are none to read (no debugfs, no such kernel, not root)."""
    return parse(procfs.try_text(PATH))


def parse(text: str | None) -> Generations | None:
    """Return what ``lru_gen`` or ``lru_gen_full`` says, or None where it could not be read or says nothing of the kind.

    Rows that are no generation's are passed over. A text that was cut off loses its last group.
    """
    lines = (text or "").splitlines(keepends=True)
    starts = [at for at, line in enumerate(lines) if line.startswith("memcg ")]
    if not starts:
        return None
    groups = [_group(lines[start:end]) for start, end in pairwise([*starts, len(lines)])]
    cut = not lines[-1].endswith("\n") or groups[-1] is None
    whole = groups[:-1] if cut else groups
    return Generations(tuple(one for one in whole if one is not None), cut)


def _group(lines: Sequence[str]) -> GroupGenerations | None:
    """Return a group from its rows, None where a node of it has too few generations."""
    words = lines[0].rstrip("\n").split(maxsplit=2)  # the group's id, then its path
    starts = [at for at, line in enumerate(lines) if line.split()[:1] == ["node"]]
    nodes = [_node(lines[start:end]) for start, end in pairwise([*starts, len(lines)])]
    if not nodes or None in nodes:
        return None
    return GroupGenerations(words[2] if len(words) > 2 else "", tuple(one for one in nodes if one is not None))


def _node(lines: Sequence[str]) -> NodeGenerations | None:
    number = procfs.to_int(lines[0].split()[-1])
    generations = tuple(_generations(lines[1:]))
    return None if number is None or len(generations) < MIN_GENERATIONS else NodeGenerations(number, generations)


def _generations(lines: Sequence[str]) -> Iterator[Generation]:
    """Yield the generations among a node's rows: their numbers rise by one, unlike those of rows of statistics."""
    due: int | None = None
    for line in lines:
        # lru_gen_full marks with x what a kind of page has left.
        numbers = [procfs.to_int(word.rstrip("x")) for word in line.split()]
        if len(numbers) != _GENERATION_WORDS:
            continue
        seq, age, anon, file = numbers
        if seq is None or age is None or anon is None or file is None or (due is not None and seq != due):
            continue
        yield Generation(seq, age, anon, file)
        due = seq + 1


def _added(rows: Iterator[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(sum(rank) for rank in zip_longest(*rows, fillvalue=0))
