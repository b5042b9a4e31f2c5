"""One run of the engine, as it was seen from outside and told from inside; not yet proved."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pytest_moetier.engine.arm import Arm
from pytest_moetier.host.enforce import Ending, Enforced
from pytest_moetier.host.snapshot import Counters, Interval, ScopeCounters


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What the engine is, and what of the host its reads depend on.

    Attributes:
        version: of the package that brought it.
        backend: the device it computes on.
        system_info: the instruction sets it was built for and found.
        context: tokens that its context holds.
        batch: the most tokens of one call.
        micro_batch: the most tokens computed at once.
        vocabulary: token ids of the model.
        maps: the model's files in the process' list of mappings, each once; empty where nothing is mapped.
        read_ahead_kb: of the model's device, as read back with the worker waiting.
        damon: names of DAMON's parts that ran: it reclaims by itself.
        transparent_huge_pages: the choice for anonymous memory.
        buffers: what the engine said of its buffers while it loaded.
    """

    version: str
    backend: str
    system_info: str
    context: int
    batch: int
    micro_batch: int
    vocabulary: int
    maps: tuple[str, ...]
    read_ahead_kb: int | None
    damon: tuple[str, ...]
    transparent_huge_pages: str
    buffers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Resident:
    """Bytes of the model in the page cache, in whole pages; None where no probe tells the truth."""

    experts: int | None
    spine: int | None


@dataclass(frozen=True, slots=True)
class Gate:
    """What was seen at one gate of the worker: ``ready``, ``decode`` or ``end``.

    Attributes:
        counters: as the worker read them on arriving.
        go: as it read them when it was let go, None at the last gate: an interval begins here.
        resident: of the model, while the worker waited.
    """

    counters: Counters
    go: Counters | None
    resident: Resident


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token.

    Attributes:
        id: the token.
        phase: ``prefill`` for the first, which the prompt's pass chose; else ``decode``.
        seconds: from the call to the choice.
        majflt: major faults of the process meanwhile.
        minflt: minor ones.
    """

    id: int
    phase: str
    seconds: float
    majflt: int
    minflt: int


@dataclass(frozen=True, slots=True)
class PolicyTotals:
    """What the arm's policy did in the whole run.

    Attributes:
        calls: hints given.
        advised_bytes: that they named.
        read_bytes: read by ``pread`` and ``background``.
        unread: slabs that the background thread had not begun at the end.
        seconds: spent in the callback, which the computation waits for.
    """

    calls: int = 0
    advised_bytes: int = 0
    read_bytes: int = 0
    unread: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Choices:
    """What the router chose: one row a position and layer, in the order of the computation.

    Attributes:
        prefill: whether the row is the prompt's.
        position: of the token in the sequence.
        layer: number of the layer.
        experts: k ids a row, as the engine issued them.
        compared: rows that were compared with a recomputation from the router's logits.
        different: of these, how many differed.
    """

    prefill: NDArray[np.bool_]
    position: NDArray[np.uint32]
    layer: NDArray[np.uint16]
    experts: NDArray[np.uint16]
    compared: int = 0
    different: int = 0


@dataclass(frozen=True, slots=True)
class EngineRun:
    """One run of the engine that came to its end, not yet proved.

    Attributes:
        arm: what was varied.
        round: which repetition, from 0.
        order: place in the session's random order, from 0.
        started_seconds: since the epoch.
        facts: of the engine and the host.
        synthetic: the model's weights are random: what it says of routing holds for no real model.
        model: its name, and the words for its bytes.
        expert_bytes: of all routed experts.
        spine_bytes: of all that is no routed expert.
        capacity_bytes: page cache for the model; None without a wall.
        enforced: what the wall was set to; None without a wall.
        ending: what was seen of it at the end; None without a wall.
        read_limit: bytes a second as read back; None without one.
        load_mode: of ``job.LOAD_MODES``.
        load_seconds: from start to loaded.
        prefill_seconds: of the prompt's pass.
        decode_seconds: of all further tokens.
        prompt_tokens: of the prompt.
        tokens_asked: of the job.
        tokens: as generated, the first chosen by the prompt's pass.
        told_ids: the ids in the worker's last word.
        sha256: of these, as the worker gave it.
        ready: loaded, warmed, its cache dropped.
        decode: the prompt is done.
        end: the last token is chosen.
        prefill: from ``ready`` to ``decode``.
        decoding: from ``decode`` to ``end``.
        anon_bytes: anonymous memory of the process at the end; None where not observable.
        locked_bytes: of the spine, as the worker locked them.
        locked_observed: VmLck at the end.
        policy: what the arm's policy did.
        dropped: expert bytes still resident after each drop; None where not observable. Empty but for ``drop``.
        drop_seconds: of all drops together, apart from the tokens' own time.
        choices: of the router; None where they were not captured.
        inflight_zero: no request was in flight at any gate; None where nobody looked.
        loop_dio: the model's loop device read its image by direct I/O, at ready and end; None without one.
        image_resident_bytes: cached of the image itself, before the start and at the end; None without one.
        warnings: sentences about what was left out or seen besides.
    """

    arm: Arm
    round: int
    order: int
    started_seconds: float
    facts: EngineFacts
    synthetic: bool
    model: str
    expert_bytes: int
    spine_bytes: int
    capacity_bytes: int | None
    enforced: Enforced | None
    ending: Ending | None
    read_limit: int | None
    load_mode: str
    load_seconds: float
    prefill_seconds: float
    decode_seconds: float
    prompt_tokens: int
    tokens_asked: int
    tokens: tuple[Token, ...]
    told_ids: tuple[int, ...]
    sha256: str
    ready: Gate
    decode: Gate
    end: Gate
    prefill: Interval
    decoding: Interval
    anon_bytes: int | None
    locked_bytes: int
    locked_observed: int | None
    policy: PolicyTotals
    dropped: tuple[int | None, ...]
    drop_seconds: float
    choices: Choices | None
    inflight_zero: bool | None
    loop_dio: tuple[bool, bool] | None
    image_resident_bytes: tuple[int, int] | None
    warnings: tuple[str, ...] = ()

    @property
    def ids(self) -> tuple[int, ...]:
        """The generated token ids."""
        return tuple(one.id for one in self.tokens)

    @property
    def decoded(self) -> tuple[Token, ...]:
        """The tokens of the decode: all but the first, which the prompt's pass chose."""
        return tuple(one for one in self.tokens if one.phase == "decode")

    @property
    def tokens_per_second(self) -> float:
        """Of the decode alone, 0 where nothing was decoded."""
        return len(self.decoded) / self.decode_seconds if self.decode_seconds else 0.0

    @property
    def majflt_per_token(self) -> float:
        """Major faults of the process in the decode, a token."""
        return sum(one.majflt for one in self.decoded) / max(1, len(self.decoded))

    @property
    def bytes_per_token(self) -> float | None:
        """Device bytes of the decode, a token; None where the device cannot be counted."""
        read = self.decoding.device_read_bytes
        return None if read is None else read / max(1, len(self.decoded))


@dataclass(frozen=True, slots=True)
class EngineOomRun:
    """One run that the wall's out-of-memory killer ended, reported rather than proved.

    Attributes:
        arm: what was varied.
        round: which repetition.
        order: place in the session's random order.
        started_seconds: since the epoch.
        load_mode: ``direct_io`` holds all weights in anonymous memory, which no page cache can give back.
        capacity_bytes: of the wall.
        enforced: what the wall was set to.
        ending: what was seen of it at the end.
        scope: after the kill.
        signal: that ended the worker.
        at: the last gate that it reached, "" for none.
        tokens: generated before.
        seconds: from start to its end.
    """

    arm: Arm
    round: int
    order: int
    started_seconds: float
    load_mode: str
    capacity_bytes: int
    enforced: Enforced
    ending: Ending
    scope: ScopeCounters | None
    signal: int
    at: str
    tokens: int
    seconds: float
