"""Cache policies as anyone would write them down first: lists and dicts, one step at a time, for tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from pytest_moetier.trace.records import Trace

Event = Sequence[int]
Key = Callable[[int], tuple[float, ...]]


def last_occurrences(event: Iterable[int]) -> list[int]:
    """Return each object once, where it stands last."""
    return list(dict.fromkeys(reversed(list(event))))[::-1]


def as_events(records: Sequence[Event], *, atomic: bool) -> list[list[int]]:
    """Return what is looked up together: a record's distinct objects, or one access after another."""
    if atomic:
        return [last_occurrences(record) for record in records]
    return [[one] for record in records for one in record]


def next_event(events: Sequence[Event]) -> list[dict[int, tuple[float, float]]]:
    """Return per event and object of it where it is used next: (event, place in it), infinite for never."""
    upcoming: dict[int, tuple[float, float]] = {}
    found: list[dict[int, tuple[float, float]]] = [{} for _ in events]
    for number in range(len(events) - 1, -1, -1):
        for one in events[number]:
            found[number][one] = upcoming.get(one, (float("inf"), -one))
        for place, one in enumerate(events[number]):
            upcoming[one] = (number, place)
    return found


def replay(events: Sequence[Event], capacity: int, size: Mapping[int, int], policy: str) -> list[bool]:
    """Return per lookup whether it hits.

    All lookups of an event see the content at its start. Then each object is touched in order, and admitted. Then what
    the event did not touch is evicted, one after another, until the rest fits.
    """
    held: set[int] = set()
    touched_at: dict[int, int] = {}
    uses: Counter[int] = Counter()
    hits: list[bool] = []
    clock = 0
    following = next_event(events)
    next_use: dict[int, tuple[float, float]] = {}
    first_to_go: dict[str, Key] = {
        "lru": lambda one: (touched_at[one],),
        "lfu": lambda one: (uses[one], touched_at[one]),
        "lfu-perfect": lambda one: (uses[one], touched_at[one]),
        "belady": lambda one: (-next_use[one][0], -next_use[one][1]),
    }
    for number, event in enumerate(events):
        hits += [one in held for one in event]
        for one in event:
            clock += 1
            touched_at[one] = clock
            if policy == "lfu" and one not in held:
                uses[one] = 0
            uses[one] += 1
            next_use[one] = following[number][one]
            held.add(one)
        for one in sorted(held - set(event), key=first_to_go[policy]):
            if sum(size[each] for each in held) <= capacity:
                break
            held.remove(one)
    return hits


def pinned(counts: Mapping[int, int], objects: Iterable[int], capacity: int, size: Mapping[int, int]) -> set[int]:
    """Return the first objects of a table that fit, up to the first that does not."""
    held: set[int] = set()
    for one in sorted(objects, key=lambda one: (-counts.get(one, 0), one)):
        if sum(size[each] for each in held) + size[one] > capacity:
            break
        held.add(one)
    return held


class Reference:
    """A trace's accesses, replayed plainly.

    Attributes:
        records: (iteration, layer index, objects) per event, the prompt's iterations first where it is in.
    """

    def __init__(
        self, trace: Trace, *, atomic: bool, sizes: Sequence[int] = (), prefill: bool = False, unit: str = "experts"
    ) -> None:
        """Take the trace apart."""
        self.n_experts, self.n_layers = trace.n_experts, len(trace.layers)
        self.objects = range(self.n_layers * self.n_experts)
        self.bytes = {one: sizes[one // self.n_experts] if sizes else 0 for one in self.objects}
        self.size = self.bytes if unit == "bytes" else dict.fromkeys(self.objects, 1)
        prompt = trace.prefill if prefill else None
        self.n_prefill = prompt.n_iterations if prompt else 0
        self.records: list[tuple[int, int, list[int]]] = []
        for part, before in ((prompt, 0), (trace, self.n_prefill)):
            for record in part.records() if part else ():
                layer = trace.layers.index(record.layer)
                objects = [layer * self.n_experts + one for one in record.experts]
                self.records += [(before + record.iteration, layer, one) for one in as_events([objects], atomic=atomic)]

    def lookups(self, first: int, last: int) -> list[tuple[int, int, int]]:
        """Return (iteration, layer, object) of the lookups of some iterations."""
        return [
            (iteration, layer, one)
            for iteration, layer, event in self.records
            if first <= iteration < last
            for one in event
        ]

    def hits(
        self, policy: str, capacity: int, last: int, *, by_layer: bool = False, counts: Mapping[int, int] | None = None
    ) -> list[bool]:
        """Return per lookup before iteration ``last`` whether it hits, each cache of the capacity beginning empty."""
        records = [one for one in self.records if one[0] < last]
        answers: list[list[bool]] = [[] for _ in records]
        for which in range(self.n_layers) if by_layer else [None]:
            mine = [at for at, (_, layer, _) in enumerate(records) if which in {None, layer}]
            events = [records[at][2] for at in mine]
            if policy == "static":
                objects = [one for one in self.objects if which in {None, one // self.n_experts}]
                held = pinned(counts or {}, objects, capacity, self.size)
                found = [one in held for event in events for one in event]
            else:
                found = replay(events, capacity, self.size, policy)
            for at in mine:
                answers[at], found = found[: len(records[at][2])], found[len(records[at][2]) :]
        return [one for answer in answers for one in answer]

    def counts(self, first: int, last: int) -> Counter[int]:
        """Return how often each object is looked up in some iterations."""
        return Counter(one for _, _, one in self.lookups(first, last))
