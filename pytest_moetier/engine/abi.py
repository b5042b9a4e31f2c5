"""The engine's library, found, checked, and told what its functions look like.

xllamacpp's wheel exports llama.cpp's C API from its one extension module. It ships no header, so the structures are
ours, for exactly one build: another is refused, and the defaults that this one fills in are checked before it is used.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from ctypes import POINTER, c_bool, c_char, c_char_p, c_float, c_int32, c_int64, c_size_t, c_uint16, c_uint32, c_void_p
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from pytest_moetier.errors import HarnessError, UnsupportedHostError

VERSION = "2026.10.11549"
"""The one build of xllamacpp whose structures are described here."""
INSTALL = f"pip install 'xllamacpp=={VERSION}' gguf (the extra: pip install 'pytest-moetier[engine]')"
LOAD_MODES = {"mmap": 1, "direct_io": 4}
"""The engine's own numbers of ``job.LOAD_MODES``."""
BACKEND = "CPU"

EvalCallback = ctypes.CFUNCTYPE(c_bool, c_void_p, c_bool, c_void_p)
LogCallback = ctypes.CFUNCTYPE(None, ctypes.c_int, c_char_p, c_void_p)
AbortCallback = ctypes.CFUNCTYPE(None, c_char_p)


def _fields(kind: type, *names: str) -> list[tuple[str, type]]:
    return [(name, kind) for name in names]


class ModelParams(ctypes.Structure):
    """``llama_model_params`` of this build."""

    _fields_ = (
        *_fields(c_void_p, "devices", "tensor_buft_overrides"),
        *_fields(c_int32, "n_gpu_layers", "split_mode", "load_mode", "lazy_mode", "main_gpu"),
        *_fields(c_void_p, "tensor_split", "progress_callback", "progress_callback_user_data", "kv_overrides"),
        *_fields(c_bool, "vocab_only", "check_tensors", "use_extra_bufts", "no_host", "no_alloc", "load_mtp"),
        ("room", c_char * 64),  # a longer structure of another build writes here, not over what is ours
    )


class ContextParams(ctypes.Structure):
    """``llama_context_params`` of this build."""

    _fields_ = (
        *_fields(c_uint32, "n_ctx", "n_batch", "n_ubatch", "n_seq_max", "n_rs_seq"),
        *_fields(c_uint32, "n_outputs_max", "n_outputs_max_per_seq"),
        *_fields(c_int32, "n_threads", "n_threads_batch", "ctx_type", "rope_scaling_type"),
        *_fields(c_int32, "pooling_type", "attention_type", "flash_attn_type"),
        *_fields(c_float, "rope_freq_base", "rope_freq_scale", "yarn_ext_factor", "yarn_attn_factor"),
        *_fields(c_float, "yarn_beta_fast", "yarn_beta_slow"),
        ("yarn_orig_ctx", c_uint32),
        ("defrag_thold", c_float),
        ("cb_eval", EvalCallback),
        ("cb_eval_user_data", c_void_p),
        *_fields(c_int32, "type_k", "type_v"),
        ("moe_cache_size", c_size_t),
        *_fields(c_void_p, "abort_callback", "abort_callback_data"),
        *_fields(c_bool, "embeddings", "offload_kqv", "no_perf", "op_offload", "swa_full", "kv_unified"),
        ("samplers", c_void_p),
        ("n_samplers", c_size_t),
        ("ctx_other", c_void_p),
        ("room", c_char * 64),
    )


class Batch(ctypes.Structure):
    """``llama_batch``."""

    _fields_ = (("n_tokens", c_int32), *_fields(c_void_p, "token", "embd", "pos", "n_seq_id", "seq_id", "logits"))


class Tensor(ctypes.Structure):
    """``ggml_tensor``."""

    _fields_ = (
        ("type", c_int32),
        ("buffer", c_void_p),
        ("ne", c_int64 * 4),
        ("nb", c_size_t * 4),
        ("op", c_int32),
        ("op_params", c_int32 * 16),
        ("flags", c_int32),
        ("src", c_void_p * 10),
        ("view_src", c_void_p),
        ("view_offs", c_size_t),
        ("data", c_void_p),
        ("name", c_char * 64),
        ("extra", c_void_p),
    )


TYPE_F32, TYPE_I32 = 0, 26
"""Of ``Tensor.type``."""


class HeaderParams(ctypes.Structure):
    """``gguf_init_params``: nothing but the header is read where ``ctx`` is null."""

    _fields_ = (("no_alloc", c_bool), ("ctx", c_void_p))


_DEFAULTS: tuple[tuple[str, object], ...] = (
    ("n_ctx", 512),
    ("n_batch", 2048),
    ("n_ubatch", 512),
    ("n_seq_max", 1),
    ("rope_scaling_type", -1),
    ("pooling_type", -1),
    ("yarn_ext_factor", -1.0),
    ("defrag_thold", -1.0),
    ("cb_eval_user_data", None),
    ("type_k", 1),
    ("type_v", 1),
    ("moe_cache_size", 0),
    ("abort_callback", None),
    ("embeddings", False),
    ("offload_kqv", True),
    ("no_perf", True),
    ("op_offload", True),
    ("swa_full", True),
    ("kv_unified", False),
    ("samplers", None),
    ("n_samplers", 0),
    ("ctx_other", None),
)
_MODEL_DEFAULTS: tuple[tuple[str, object], ...] = (
    ("devices", None),
    ("n_gpu_layers", -1),
    ("split_mode", 1),
    ("load_mode", -1),
    ("lazy_mode", 1),
    ("main_gpu", 0),
    ("kv_overrides", None),
    ("vocab_only", False),
    ("check_tensors", False),
    ("use_extra_bufts", True),
    ("no_host", False),
    ("no_alloc", False),
    ("load_mtp", False),
)

_FUNCTIONS: dict[str, tuple[object, tuple[object, ...]]] = {
    "ggml_backend_dev_count": (c_size_t, ()),
    "ggml_backend_dev_get": (c_void_p, (c_size_t,)),
    "ggml_backend_dev_name": (c_char_p, (c_void_p,)),
    "ggml_backend_dev_description": (c_char_p, (c_void_p,)),
    "ggml_backend_tensor_get": (None, (c_void_p, c_void_p, c_size_t, c_size_t)),
    "ggml_set_abort_callback": (c_void_p, (AbortCallback,)),
    "gguf_find_key": (c_int64, (c_void_p, c_char_p)),
    "gguf_free": (None, (c_void_p,)),
    "gguf_get_data_offset": (c_size_t, (c_void_p,)),
    "gguf_get_kv_type": (c_int32, (c_void_p, c_int64)),
    "gguf_get_n_tensors": (c_int64, (c_void_p,)),
    "gguf_get_tensor_name": (c_char_p, (c_void_p, c_int64)),
    "gguf_get_tensor_offset": (c_size_t, (c_void_p, c_int64)),
    "gguf_get_tensor_size": (c_size_t, (c_void_p, c_int64)),
    "gguf_get_val_str": (c_char_p, (c_void_p, c_int64)),
    "gguf_get_val_u16": (c_uint16, (c_void_p, c_int64)),
    "gguf_get_val_u32": (c_uint32, (c_void_p, c_int64)),
    "gguf_init_from_file": (c_void_p, (c_char_p, HeaderParams)),
    "llama_backend_init": (None, ()),
    "llama_batch_get_one": (Batch, (c_void_p, c_int32)),
    "llama_context_default_params": (ContextParams, ()),
    "llama_decode": (c_int32, (c_void_p, Batch)),
    "llama_get_logits_ith": (c_void_p, (c_void_p, c_int32)),
    "llama_get_memory": (c_void_p, (c_void_p,)),
    "llama_init_from_model": (c_void_p, (c_void_p, ContextParams)),
    "llama_log_set": (None, (LogCallback, c_void_p)),
    "llama_memory_clear": (None, (c_void_p, c_bool)),
    "llama_model_default_params": (ModelParams, ()),
    "llama_model_get_vocab": (c_void_p, (c_void_p,)),
    "llama_model_load_from_file": (c_void_p, (c_char_p, ModelParams)),
    "llama_model_n_ctx_train": (c_int32, (c_void_p,)),
    "llama_n_batch": (c_uint32, (c_void_p,)),
    "llama_n_ctx": (c_uint32, (c_void_p,)),
    "llama_n_ubatch": (c_uint32, (c_void_p,)),
    "llama_print_system_info": (c_char_p, ()),
    "llama_tokenize": (c_int32, (c_void_p, c_char_p, c_int32, POINTER(c_int32), c_int32, c_bool, c_bool)),
    "llama_vocab_n_tokens": (c_int32, (c_void_p,)),
    "llama_vocab_type": (c_int32, (c_void_p,)),
}


@dataclass(frozen=True, slots=True)
class Library:
    """The engine's library, loaded and checked.

    Attributes:
        path: of its shared object.
        version: of the package that brought it.
        dll: its functions, with their types set.
        backend: names of the devices it computes on, joined by ``+``.
        device: what the first of them says it is.
        system_info: the instruction sets it was built for and found.
    """

    path: Path
    version: str
    dll: ctypes.CDLL
    backend: str
    device: str
    system_info: str


def find_library() -> tuple[Path, str]:
    """Return the shared object of xllamacpp and the package's version, without loading it.

    Raises:
        UnsupportedHostError: wrong machine, nothing installed, or another build.
    """
    if not sys.platform.startswith("linux") or platform.machine() != "x86_64" or ctypes.sizeof(c_void_p) != 8:
        raise UnsupportedHostError(
            f"this is {sys.platform} on {platform.machine()}",
            "Linux on x86_64, 64 bit: the one build that is described",
        )
    spec = find_spec("xllamacpp")
    if spec is None or not spec.origin:
        raise UnsupportedHostError("xllamacpp, the engine, is not installed", f"xllamacpp {VERSION}", INSTALL)
    folder = Path(spec.origin).parent
    # The folder's name says the version; importlib.metadata would load megabytes into a worker behind a wall.
    found = [path.name[len("xllamacpp-") : -len(".dist-info")] for path in folder.parent.glob("xllamacpp-*.dist-info")]
    version = " and ".join(sorted(found)) or "of no known version"
    library = folder / "xllamacpp.abi3.so"
    if version != VERSION:
        raise UnsupportedHostError(f"xllamacpp is {version}", f"exactly {VERSION}", INSTALL)
    if not library.is_file():
        raise UnsupportedHostError(f"{library} is missing", f"the extension module of xllamacpp {VERSION}", INSTALL)
    return library, version


def check_defaults(model: ModelParams, context: ContextParams) -> None:
    """Refuse a library whose defaults do not lie where this build has them: every field is looked at.

    Raises:
        HarnessError: the first field that differs.
    """
    for params, defaults in ((model, _MODEL_DEFAULTS), (context, _DEFAULTS)):
        for name, expected in defaults:
            seen = getattr(params, name)
            if seen != expected:
                raise HarnessError(
                    f"the engine's default {name} is {seen!r}", f"{expected!r}, as xllamacpp {VERSION} has it", INSTALL
                )


def load_library() -> Library:
    """Load the engine, check it, and return it.

    Raises:
        UnsupportedHostError: it is not there, another build, or lacks a system library.
        HarnessError: it loads, but does not answer as this build does.
    """
    path, version = find_library()
    try:
        dll = ctypes.CDLL(os.fspath(path))
    except OSError as error:
        if "libgomp" in str(error):
            raise UnsupportedHostError(str(error), "libgomp.so.1, OpenMP's runtime", "apt install libgomp1") from error
        raise UnsupportedHostError(
            f"{path} cannot be loaded: {error}", "a shared object of this host", INSTALL
        ) from error
    for name, (result, arguments) in _FUNCTIONS.items():
        try:
            function = getattr(dll, name)
        except AttributeError as error:
            raise HarnessError(f"{path} has no {name}", f"the C API of xllamacpp {VERSION}", INSTALL) from error
        function.restype, function.argtypes = result, arguments
    check_defaults(dll.llama_model_default_params(), dll.llama_context_default_params())
    devices = [dll.ggml_backend_dev_get(number) for number in range(dll.ggml_backend_dev_count())]
    names = "+".join(str(dll.ggml_backend_dev_name(device), "utf-8", "replace") for device in devices)
    told = dll.ggml_backend_dev_description(devices[0]) if devices else b""
    info = dll.llama_print_system_info()
    return Library(
        path, version, dll, names, told.decode("utf-8", "replace"), info.decode("utf-8", "replace").strip(" |")
    )
