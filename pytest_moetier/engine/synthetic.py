"""Models with random weights, written by us: mixtures of experts that the engine really computes (paper section 9).

What their routers choose says nothing of a trained model, and every file says of itself that it is synthetic. The
scales of the weights are chosen so that the output is not the same few tokens for ever (with all scales equal 16 layers
said 5 different ones in 24): the embeddings are large against what the layers add, of which the attention's part is
common to neighbours. That is about the output, never about a verdict.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_moetier.engine.arm import QUANTISATIONS
from pytest_moetier.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ARCHITECTURES = ("olmoe", "qwen3moe")
ALIGNMENT = 4096
"""Tensors begin on a page, and with a preset's shape experts do."""
PROMPT = (5, 6, 7, 8, 9, 10, 11, 12)
"""The prompt of ids that self-tests and findings give a generated model."""
_BLOCK = 32  # weights that share a scale
_BLOCK_BYTES = {"q8_0": 34, "q4_0": 18}
_CHUNK_BLOCKS = 1 << 17


@dataclass(frozen=True, slots=True)
class ModelShape:
    """How large a generated model is.

    Attributes:
        name: of the preset.
        layers: all of them with routed experts.
        experts: of a layer.
        k: that a token uses.
        hidden: width of the residual stream.
        inner: width of an expert.
        heads: of the attention.
        vocabulary: token ids.
        context: tokens the model says it was trained for.
    """

    name: str
    layers: int
    experts: int
    k: int
    hidden: int
    inner: int
    heads: int
    vocabulary: int
    context: int = 4096

    def expert_bytes(self, quantisation: str) -> int:
        """Return the bytes of one expert: gate, up and down."""
        return 3 * self.hidden * self.inner // _BLOCK * _BLOCK_BYTES[quantisation]


TINY = ModelShape("tiny", layers=2, experts=8, k=2, hidden=64, inner=64, heads=2, vocabulary=256)
PRESSURE = ModelShape("pressure", layers=16, experts=64, k=8, hidden=512, inner=512, heads=8, vocabulary=1024)
PRESETS = {shape.name: shape for shape in (TINY, PRESSURE)}


@dataclass(frozen=True, slots=True)
class _Tensor:
    """One tensor: its name, its shape as numpy has it (rows last), what it holds, and the spread of its values."""

    name: str
    shape: tuple[int, ...]
    kind: str
    spread: float = 0.0
    mean: float = 0.0


def _tensors(shape: ModelShape, architecture: str, quantisation: str) -> Iterator[_Tensor]:
    hidden, inner, experts = shape.hidden, shape.inner, shape.experts
    narrow, q = hidden**-0.5, quantisation
    yield _Tensor("token_embd.weight", (shape.vocabulary, hidden), "f16", max(1.0, shape.layers / 4))
    yield _Tensor("output_norm.weight", (hidden,), "f32", mean=1.0)
    yield _Tensor("output.weight", (shape.vocabulary, hidden), "f16", narrow)
    normed = hidden if architecture == "olmoe" else hidden // shape.heads
    for layer in range(shape.layers):
        at = f"blk.{layer}."
        yield _Tensor(f"{at}attn_norm.weight", (hidden,), "f32", mean=1.0)
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            yield _Tensor(f"{at}{name}.weight", (hidden, hidden), q, narrow / 2 if name == "attn_output" else narrow)
        for name in ("attn_q_norm", "attn_k_norm"):
            yield _Tensor(f"{at}{name}.weight", (normed,), "f32", mean=1.0)
        yield _Tensor(f"{at}ffn_norm.weight", (hidden,), "f32", mean=1.0)
        yield _Tensor(f"{at}ffn_gate_inp.weight", (experts, hidden), "f32", narrow)
        yield _Tensor(f"{at}ffn_gate_exps.weight", (experts, inner, hidden), q, narrow)
        yield _Tensor(f"{at}ffn_up_exps.weight", (experts, inner, hidden), q, narrow)
        yield _Tensor(f"{at}ffn_down_exps.weight", (experts, hidden, inner), q, inner**-0.5)


def _blocks(rng: np.random.Generator, count: int, quantisation: str, spread: float) -> NDArray[Any]:
    """Return ``count`` blocks of 32 quantised weights with one scale for all."""
    import numpy as np  # noqa: PLC0415  # heavy

    wide = quantisation == "q8_0"
    blocks = np.empty(count, dtype=[("d", "<f2"), ("q", "i1", 32) if wide else ("q", "u1", 16)])
    if wide:
        blocks["q"] = rng.integers(-127, 128, size=(count, 32), dtype=np.int8)
    else:
        # Two of -7 to 7 a byte: the 16th value, -8, would give every weight a mean, and the output one token for ever.
        low, high = rng.integers(1, 16, size=(2, count, 16), dtype=np.uint8)
        blocks["q"] = low | high << 4
    blocks["d"] = spread / (73.3 if wide else 4.32)  # the spread of uniform -127..127, and of -7..7
    return blocks


def _values(tensor: _Tensor, seed: int, number: int) -> Iterator[Any]:
    """Yield a tensor's values in pieces: each tensor has a generator of its own, whatever was written before it."""
    import numpy as np  # noqa: PLC0415  # heavy

    rng = np.random.default_rng((seed, number))
    total = math.prod(tensor.shape)
    if tensor.kind in _BLOCK_BYTES:
        for at in range(0, total // _BLOCK, _CHUNK_BLOCKS):
            yield _blocks(rng, min(_CHUNK_BLOCKS, total // _BLOCK - at), tensor.kind, tensor.spread)
        return
    values = rng.standard_normal(total, dtype=np.float32) * np.float32(tensor.spread) + np.float32(tensor.mean)
    yield values.astype(np.float16) if tensor.kind == "f16" else values


def write_model(
    path: Path, shape: ModelShape, *, architecture: str = "olmoe", quantisation: str = "q8_0", seed: int = 1234
) -> Path:
    """Write a generated model as one GGUF file, streaming, and return its path; nothing is left where that fails.

    Args:
        path: of the file, which is replaced.
        shape: of the model.
        architecture: one of ``ARCHITECTURES``.
        quantisation: of the experts and of the attention, one of ``arm.QUANTISATIONS``.
        seed: of every weight.

    Raises:
        InputError: an unknown architecture or quantisation, or a folder that takes no such file.
    """
    for word, known in ((architecture, ARCHITECTURES), (quantisation, QUANTISATIONS)):
        if word not in known:
            raise InputError(f"{word!r}", " or ".join(known))
    try:
        _write(path, shape, architecture, quantisation, seed)
    except BaseException as error:
        with suppress(OSError):
            path.unlink()
        if isinstance(error, OSError):
            raise InputError(f"{path} cannot be written: {error.strerror}", "a folder with room", "df -h") from error
        raise
    return path


def _write(path: Path, shape: ModelShape, architecture: str, quantisation: str, seed: int) -> None:
    import gguf  # noqa: PLC0415  # heavy
    import numpy as np  # noqa: PLC0415  # heavy

    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name(f"synthetic-{shape.name}-{architecture}-{quantisation}-seed{seed}")
    writer.add_bool("moetier.synthetic", True)  # noqa: FBT003 - a value
    writer.add_custom_alignment(ALIGNMENT)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.inner)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_expert_count(shape.experts)
    writer.add_expert_used_count(shape.k)
    if architecture == "qwen3moe":
        writer.add_expert_feed_forward_length(shape.inner)
    writer.add_tokenizer_model("none")
    writer.add_vocab_size(shape.vocabulary)
    kinds: dict[str, tuple[np.dtype[Any], Any]] = {
        "f32": (np.dtype("float32"), None),
        "f16": (np.dtype("float16"), None),
        "q8_0": (np.dtype("uint8"), gguf.GGMLQuantizationType.Q8_0),
        "q4_0": (np.dtype("uint8"), gguf.GGMLQuantizationType.Q4_0),
    }
    tensors = tuple(_tensors(shape, architecture, quantisation))
    for tensor in tensors:
        dtype, raw = kinds[tensor.kind]
        stored = tensor.shape
        if raw is not None:
            stored = (*stored[:-1], stored[-1] // _BLOCK * _BLOCK_BYTES[tensor.kind])
        size = math.prod(stored) * dtype.itemsize
        writer.add_tensor_info(tensor.name, stored, dtype, size, raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with path.open("ab") as file:
        for number, tensor in enumerate(tensors):
            file.write(bytes(-file.tell() % ALIGNMENT))
            for piece in _values(tensor, seed, number):
                file.write(memoryview(piece).cast("B") if piece.dtype.names is None else piece.tobytes())
        file.write(bytes(-file.tell() % ALIGNMENT))


def first_choice(path: Path, shape: ModelShape, token: int) -> frozenset[int]:
    """Return the experts that layer 0 of a generated olmoe must choose for the first token, by our own arithmetic.

    The first token attends to itself alone, so its attention is its value, whatever query and key are.
    """
    import gguf  # noqa: PLC0415  # heavy
    import numpy as np  # noqa: PLC0415  # heavy

    tensors = {one.name: one for one in gguf.GGUFReader(path).tensors}

    def weights(name: str) -> NDArray[Any]:
        return np.asarray(gguf.quants.dequantize(tensors[name].data, tensors[name].tensor_type), dtype=np.float64)

    def normed(x: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(x / np.sqrt(np.mean(x * x) + 1e-5))

    x = weights("token_embd.weight")[token]
    value = weights("blk.0.attn_v.weight") @ normed(x)
    x = x + weights("blk.0.attn_output.weight") @ value
    logits = weights("blk.0.ffn_gate_inp.weight") @ normed(x)
    return frozenset(int(one) for one in np.argsort(-logits)[: shape.k])
