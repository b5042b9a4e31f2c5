"""Write the small traces of other engines' formats into fixtures/traces: ``python tests/trace/make_fixtures.py``.

All hold the same routing, drawn by this project's own generator: 3 layers of E = 24 experts, k = 4, a prompt of three
positions and five decode tokens. None is recorded from a model.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

FIXTURES = Path(__file__).parents[2] / "fixtures" / "traces"
EXPERTS, K, PROMPT, DECODE = 24, 4, 3, 5
LAYERS = (1, 2, 4)
"""Numbers from 1 and with a gap, where the format has numbers."""

ROUTING = (
    ((10, 12, 7, 3), (14, 4, 11, 7), (18, 8, 22, 6)),
    ((1, 17, 19, 18), (14, 4, 11, 21), (8, 18, 20, 2)),
    ((11, 17, 19, 7), (4, 14, 7, 8), (14, 18, 8, 22)),
    ((2, 21, 22, 4), (14, 8, 7, 4), (19, 8, 22, 18)),
    ((2, 19, 23, 22), (14, 7, 21, 8), (19, 18, 8, 22)),
    ((16, 15, 13, 11), (8, 14, 5, 21), (19, 14, 18, 8)),
    ((15, 11, 19, 9), (8, 13, 5, 21), (19, 8, 14, 5)),
    ((21, 6, 1, 20), (7, 8, 16, 21), (8, 19, 1, 18)),
)
"""The ids, by position, layer and rank: once drawn by this project's generator, whose bits may change with its fit."""

WEIGHTS = (0.41, 0.2825, 0.17, 9.5e-05)
HEADER = "turn,phase,step,layer,slot,expert,weight,residency,expert_bytes"
NOISE = ("llama_context: n_ctx = 4096", "decode: 1 token in 12.5 ms", "")


def routing() -> NDArray[np.uint16]:
    """Return the ids, [positions, layers, k], prompt first."""
    return np.array(ROUTING, dtype=np.uint16)


def bigmoe() -> bytes:
    """Return a CSV of one turn; its last layer has one prompt position only, as llama.cpp prunes it."""
    lines = ["# route_trace v1", f"# model=/models/tiny.gguf arch=tiny n_layer=3 n_expert={EXPERTS} n_expert_used={K}"]
    lines += [f"# layer={layer} expert_bytes={4096 * layer} dense_bytes=8192" for layer in LAYERS]
    lines.append(HEADER)
    ids = routing()
    events = [(0, step, at) for at in range(3) for step in range(PROMPT) if at < 2 or step == PROMPT - 1]
    events += [(1, step, at) for step in range(PROMPT, PROMPT + DECODE) for at in range(3)]
    for phase, step, at in events:
        for slot, (expert, weight) in enumerate(zip(ids[step, at].tolist(), WEIGHTS, strict=True)):
            size = 4096 * LAYERS[at] if (step + slot) % 2 else 0
            lines.append(f"0,{phase},{step},{LAYERS[at]},{slot},{expert},{weight:g},{int(not size)},{size}")
    return "\n".join(lines).encode() + b"\n"


def calls() -> list[tuple[int, int, list[int]]]:
    """Return (call, layer, ids) of each record: the prompt as one call, then a call for each token."""
    ids = routing()
    found = [(0, layer, ids[:PROMPT, at].ravel().tolist()) for at, layer in enumerate(LAYERS)]
    for step in range(DECODE):
        found += [(step + 1, layer, ids[PROMPT + step, at].tolist()) for at, layer in enumerate(LAYERS)]
    return found


def layer_expert() -> bytes:
    """Return a CSV without a step."""
    lines = [f"{layer},{expert}" for _, layer, ids in calls() for expert in ids]
    return "\n".join(["layer,expert", *lines]).encode() + b"\n"


def expert_log() -> bytes:
    """Return log lines among others."""
    lines = []
    for at, (_, layer, ids) in enumerate(calls()):
        lines += [NOISE[at % 3]] * (at % 2) + [f"[EXPERT-TRACE] Layer {layer}: Experts [{', '.join(map(str, ids))}]"]
    return "\n".join(lines).encode() + b"\n"


def engine_text() -> bytes:
    """Return engine text, position after position within a call."""
    ids = routing()
    lines = []
    for position in range(PROMPT + DECODE):
        call, row = (0, position) if position < PROMPT else (position - PROMPT + 1, 0)
        for at, layer in enumerate(LAYERS):
            pairs = (f"{expert}:{weight:g}" for expert, weight in zip(ids[position, at].tolist(), WEIGHTS, strict=True))
            lines.append(f"{call} {row} {layer} {' '.join(pairs)}")
    return "\n".join(lines).encode() + b"\n"


def pairs_i32() -> bytes:
    """Return int32 pairs (layer, expert)."""
    return np.array([(layer, one) for _, layer, ids in calls() for one in ids], dtype="<i4").tobytes()


def records_u32() -> bytes:
    """Return 16 bytes a choice: token, layer, expert, time; the decode tokens, then nothing else."""
    rows = [
        (call - 1, layer, expert, 1_000_000 * call + layer) for call, layer, ids in calls() if call for expert in ids
    ]
    return np.array(rows, dtype="<u4,<u2,<u2,<u8").tobytes()


def npy() -> bytes:
    """Return the decode tokens as int16 [tokens, layers, k]."""
    file = io.BytesIO()
    np.save(file, routing()[PROMPT:].astype("<i2"))
    return file.getvalue()


def npz() -> bytes:
    """Return the decode tokens beside another array."""
    file = io.BytesIO()
    np.savez(file, topk_ids=routing()[PROMPT:].astype("<i4"), token_ids=np.arange(DECODE, dtype="<i8"))
    return file.getvalue()


MADE: dict[str, Callable[[], bytes]] = {
    "bigmoe.route.csv": bigmoe,
    "layer-expert.csv": layer_expert,
    "expert-trace.log": expert_log,
    "engine.txt": engine_text,
    "pairs.i32": pairs_i32,
    "records.u32": records_u32,
    "routed_experts.npy": npy,
    "topk_ids.npz": npz,
}


if __name__ == "__main__":
    for name, make in MADE.items():
        (FIXTURES / name).write_bytes(make())
