"""One llama.cpp model in this process: looked at before it is loaded, loaded, fed, and read.

llama.cpp ends the process where it meets what it did not expect. So what can be seen in the header is checked first, by
the engine's own reader, and an abort that comes all the same is told as one message before the process ends.
"""

from __future__ import annotations

import ctypes
import math
import os
import re
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_moetier.engine import abi
from pytest_moetier.engine.job import Job
from pytest_moetier.errors import HarnessError, InputError, UnsupportedHostError

_LOG_LINES = 12
_U16, _U32, _STRING = 2, 4, 8  # gguf's numbers of the types of values
_NO_VOCABULARY = 0
_MAP = "`moetier pool map MODEL` says what is in it"

Eval = Callable[[int, bool], bool]
"""Of a tensor's address and whether the engine only asks: True to see it once it is computed, or to go on."""


class Log:
    """The engine's own words: all to standard error, the last lines and the sizes of its buffers kept."""

    def __init__(self) -> None:
        """Begin empty."""
        self.lines: deque[str] = deque(maxlen=_LOG_LINES)
        self.buffers: list[str] = []
        self._rest = ""
        self.callback = abi.LogCallback(self._take)

    def _take(self, _level: int, text: bytes, _data: int | None) -> None:
        sys.stderr.write(said := text.decode("utf-8", "replace"))
        *lines, self._rest = (self._rest + said).split("\n")
        for line in lines:
            if line.strip(". "):
                self.lines.append(line.strip())
            if "buffer size" in line:
                self.buffers.append(line.strip())

    @property
    def reason(self) -> str:
        """What it said of an error, else its last line."""
        told = [line for line in self.lines if "error" in line.lower() or "failed" in line.lower()]
        return (told or list(self.lines) or ["nothing was said"])[0 if told else -1]


class Header:
    """A GGUF file's header, as the engine reads it."""

    def __init__(self, dll: ctypes.CDLL, path: Path) -> None:
        """Read it.

        Raises:
            InputError: there is none.
        """
        self._dll, self.path = dll, path
        try:
            self.size = path.stat().st_size
            with path.open("rb") as file:
                magic = file.read(4)
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}", "a GGUF file", f"ls -l {path}") from error
        self._handle = None
        if magic == b"GGUF":
            self._handle = dll.gguf_init_from_file(os.fsencode(path), abi.HeaderParams(no_alloc=True, ctx=None))
        if not self._handle:
            raise InputError(
                f"{path} has no header that the engine can read",
                "a whole GGUF file, version 2 or 3",
                "download or convert it again",
            )

    def close(self) -> None:
        """Free it."""
        self._dll.gguf_free(self._handle)

    def _value(self, key: str, kind: int, get: Callable[[int | None, int], object]) -> object:
        at = self._dll.gguf_find_key(self._handle, key.encode())
        # Taking a value as another type than it has ends the process.
        return get(self._handle, at) if at >= 0 and self._dll.gguf_get_kv_type(self._handle, at) == kind else None

    def integer(self, key: str) -> int | None:
        """Return an unsigned integer; None where there is none of that name and width."""
        found = self._value(key, _U32, self._dll.gguf_get_val_u32)
        found = self._value(key, _U16, self._dll.gguf_get_val_u16) if found is None else found
        return None if found is None else int(str(found))

    def text(self, key: str) -> str | None:
        """Return a string; None where there is none of that name."""
        found = self._value(key, _STRING, self._dll.gguf_get_val_str)
        return found.decode("utf-8", "replace") if isinstance(found, bytes) else None

    def tensors(self) -> list[tuple[str, int, int]]:
        """Return name, offset in the file and bytes of every tensor."""
        dll, start = self._dll, self._dll.gguf_get_data_offset(self._handle)
        return [
            (
                dll.gguf_get_tensor_name(self._handle, at).decode("utf-8", "replace"),
                start + dll.gguf_get_tensor_offset(self._handle, at),
                dll.gguf_get_tensor_size(self._handle, at),
            )
            for at in range(dll.gguf_get_n_tensors(self._handle))
        ]


def check_model(library: abi.Library, job: Job) -> bool:
    """Refuse what the engine would die of; return whether its choices follow from the router's logits alone.

    Raises:
        InputError: not a whole GGUF of a mixture of experts, or not the one that the job describes.
    """
    names: list[str] = []
    for number, file in enumerate(job.files):
        header = Header(library.dll, Path(file))
        try:
            tensors = header.tensors()
            names += [name for name, _, _ in tensors]
            end = max((offset + size for _, offset, size in tensors), default=0)
            if end > header.size:
                raise InputError(
                    f"{file} has {header.size} bytes: it is truncated", f"{end} bytes", "download or write it again"
                )
            if number == 0:
                _check_first(header, job)
        finally:
            header.close()
    if not any(re.match(r"blk\.\d+\.ffn_gate_inp\.weight$", name) for name in names):
        raise InputError(f"{job.files[0]} has no router (ffn_gate_inp)", "a mixture of experts", _MAP)
    return not any("exp_probs_b" in name for name in names)


def _check_first(header: Header, job: Job) -> None:
    architecture = header.text("general.architecture")
    if architecture is None:
        raise InputError(f"{header.path} names no architecture", "the first file of a model", _MAP)
    experts, used = (header.integer(f"{architecture}.{name}") for name in ("expert_count", "expert_used_count"))
    if not experts:
        raise InputError(
            f"{header.path} ({architecture}) has no {architecture}.expert_count",
            "a mixture of experts; a dense model has no experts to own",
            _MAP,
        )
    if not used or used > experts:
        raise InputError(
            f"{header.path}: {architecture}.expert_used_count is {used}",
            f"an unsigned integer from 1 to {experts}",
            _MAP,
        )
    if (experts, used) != (job.experts, job.k):
        raise InputError(
            f"{header.path} has {experts} experts a layer and uses {used}",
            f"{job.experts} and {job.k}, as the job says",
            _MAP,
        )
    shards = header.integer("split.count") or 1
    if shards != len(job.files):
        raise InputError(
            f"{header.path} is one of {shards} files", f"all of them; the job names {len(job.files)}", _MAP
        )


def check_prompt(job: Job) -> None:
    """Refuse a job whose prompt or length cannot be run.

    Raises:
        InputError: an empty prompt, no tokens, or more than the context holds.
    """
    if job.tokens < 1:
        raise InputError(f"{job.tokens} tokens are to be generated", "at least 1", "give a number of tokens")
    if not job.prompt:
        raise InputError("the prompt is empty", "at least one token", "give a prompt")
    if not isinstance(job.prompt, str):
        _check_room(job, len(job.prompt))


def _check_room(job: Job, prompt: int) -> None:
    # The last token that is chosen is not decoded.
    if prompt + job.tokens - 1 > job.context:
        raise InputError(
            f"a prompt of {prompt} tokens and {job.tokens} to generate",
            f"together at most {job.context}, what the context holds",
            "a shorter prompt, fewer tokens, or a larger context",
        )


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the engine made of the context that was asked for, and its vocabulary."""

    n_ctx: int
    n_batch: int
    n_ubatch: int
    vocabulary: int


class Engine:
    """A model and its context, on the CPU, with its weights where the load mode puts them."""

    def __init__(self, library: abi.Library, job: Job, log: Log, seen: Eval | None) -> None:
        """Load the model.

        Raises:
            InputError: the engine refuses it, with the engine's own words.
        """
        self._dll, self._job, self._log = library.dll, job, log
        params = self._dll.llama_model_default_params()
        params.load_mode = abi.LOAD_MODES[job.load_mode]
        params.use_extra_bufts = False  # else weights are repacked into anonymous memory
        params.n_gpu_layers = 0
        self._model = self._dll.llama_model_load_from_file(os.fsencode(job.files[0]), params)
        if not self._model:
            raise InputError(
                f"the engine does not load {job.files[0]}: {log.reason}",
                f"a model that llama.cpp of xllamacpp {abi.VERSION} knows",
                _MAP,
            )
        self._callback = abi.EvalCallback(lambda tensor, ask, _data: seen(tensor, ask)) if seen else None
        self._context = self._open(job)
        vocabulary = self._dll.llama_model_get_vocab(self._model)
        self._vocabulary = vocabulary
        self.sizes = Sizes(
            n_ctx=self._dll.llama_n_ctx(self._context),
            n_batch=self._dll.llama_n_batch(self._context),
            n_ubatch=self._dll.llama_n_ubatch(self._context),
            vocabulary=self._dll.llama_vocab_n_tokens(vocabulary),
        )

    def _open(self, job: Job) -> int:
        trained = self._dll.llama_model_n_ctx_train(self._model)
        if job.context > trained:
            raise InputError(f"a context of {job.context} tokens", f"at most {trained}, what the model was trained for")
        params = self._dll.llama_context_default_params()
        params.n_ctx = job.context
        params.n_threads = params.n_threads_batch = job.threads
        params.no_perf = True
        if self._callback is not None:
            params.cb_eval = self._callback
        context = self._dll.llama_init_from_model(self._model, params)
        if not context:
            raise InputError(
                f"the engine makes no context of {job.context} tokens: {self._log.reason}", "a smaller one"
            )
        return int(context)

    def ids(self, prompt: tuple[int, ...] | str) -> list[int]:
        """Return a prompt as token ids.

        Raises:
            InputError: an id or a text that the model's vocabulary has no place for.
        """
        if not isinstance(prompt, str):
            strange = [token for token in prompt if not 0 <= token < self.sizes.vocabulary]
            if strange:
                raise InputError(f"the prompt has token {strange[0]}", f"ids from 0 to {self.sizes.vocabulary - 1}")
            return list(prompt)
        if self._dll.llama_vocab_type(self._vocabulary) == _NO_VOCABULARY:
            raise InputError(
                "the model has no vocabulary that makes ids of a text (its tokenizer is none)",
                "a prompt of token ids",
                "give the prompt as ids",
            )
        text = prompt.encode()
        room = len(text) + 8
        out = (ctypes.c_int32 * room)()
        count = self._dll.llama_tokenize(self._vocabulary, text, len(text), out, room, True, True)  # noqa: FBT003 - C
        if count < 1:
            raise InputError(
                f"the vocabulary makes {count} tokens of the prompt", f"1 to {room}", "give the prompt as ids"
            )
        _check_room(self._job, count)
        return list(out[:count])

    def decode(self, ids: Sequence[int]) -> None:
        """Compute the next tokens after all that came before; at most ``n_ubatch`` at once.

        Raises:
            HarnessError: the engine could not.
        """
        tokens = (ctypes.c_int32 * len(ids))(*ids)
        code = self._dll.llama_decode(self._context, self._dll.llama_batch_get_one(tokens, len(ids)))
        if code:
            raise HarnessError(f"the engine's decode answered {code}: {self._log.reason}", "0")

    def best(self) -> int:
        """Return the id with the largest logit after the last token.

        Raises:
            HarnessError: the logits are no numbers.
        """
        address = self._dll.llama_get_logits_ith(self._context, -1)
        if not address:
            raise HarnessError("the engine gives no logits", "one row of them")
        row = (ctypes.c_float * self.sizes.vocabulary).from_address(address)[:]
        if math.isnan(sum(row)):
            raise HarnessError("the model's logits are not numbers (NaN)", "finite logits", "check the model's file")
        return row.index(max(row))

    def forget(self) -> None:
        """Empty the context."""
        self._dll.llama_memory_clear(self._dll.llama_get_memory(self._context), True)  # noqa: FBT003 - C


def rows(
    library: abi.Library, tensor: abi.Tensor, address: int, kind: type[ctypes.c_int32 | ctypes.c_float]
) -> list[list[float]]:
    """Return a two-dimensional tensor's rows, which are ``nb[1]`` apart: a view's rows are not contiguous."""
    width, count, step = tensor.ne[0], tensor.ne[1], tensor.nb[1]
    if not count:
        return []
    room = ctypes.create_string_buffer((count - 1) * step + width * 4)
    library.dll.ggml_backend_tensor_get(address, room, 0, len(room))
    return [(kind * width).from_buffer(room, row * step)[:] for row in range(count)]


def start(library: abi.Library, log: Log, aborted: Callable[[str], None]) -> object:
    """Start the engine's machinery; return what must be kept alive while it runs."""
    library.dll.llama_log_set(log.callback, None)
    abort = abi.AbortCallback(lambda text: aborted((text or b"").decode("utf-8", "replace").strip()))
    library.dll.ggml_set_abort_callback(abort)
    library.dll.llama_backend_init()
    if library.backend != abi.BACKEND:
        raise UnsupportedHostError(f"the engine computes on {library.backend}", abi.BACKEND, abi.INSTALL)
    return abort
