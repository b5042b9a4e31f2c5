"""Files that hold no selections, which cannot be replayed: recognised, and refused with that reason."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from pytest_moetier.errors import InputError
from pytest_moetier.trace.formats.registry import reader
from pytest_moetier.trace.rows import Hints
from pytest_moetier.trace.source import Source

_WANTED = "a router trace: which experts each layer chose, token by token"
_LOG = "log the chosen ids per token and layer; `moetier trace formats` lists the layouts that are read"

# Every repetition of words has a bound: a long line must not take the square of its length.
_COUNT_HEADER = re.compile(
    rb"\"?(layer\w{0,20}\"?[,;\t]\s?\"?)?expert\w{0,20}\"?[,;\t]([^,;\t]{0,40}[,;\t]){0,8}"
    rb"\s?\"?\w{0,20}(count|freq|hits|usage|share)\w{0,20}\"?([,;\t].{0,400})?",
    re.IGNORECASE,
)
_WIDE_HEADER = re.compile(rb"\"?layer\w{0,20}\"?([,;\t]\s?\"?(e|expert)?[_ ]?\d{1,5}\"?){4,}", re.IGNORECASE)
_COUNT_KEY = re.compile(rb'"\w{0,20}(count|freq|histogram|usage|hits)\w{0,20}"\s{0,9}:\s{0,9}[\[{]', re.IGNORECASE)
_COUNT_VALUE = re.compile(rb'"\w{0,20}(count|freq|usage|hits)\w{0,20}"\s{0,9}:\s{0,9}[\d.]', re.IGNORECASE)
_ONE_EXPERT = re.compile(rb'"expert(_?id|_?idx)?"\s{0,9}:\s{0,9}"?\d', re.IGNORECASE)
_CHOSEN_KEY = re.compile(
    rb'"(\w{0,20}experts|\w{0,20}expert_ids|\w{0,20}topk\w{0,20}|top_indices|ids|trace)"\s{0,9}:\s{0,9}\['
    rb'|"\w{0,20}routed_experts"\s{0,9}:'
    rb'|"(token|token_id\w{0,9}|token_index|t|step|req_id|type)"\s{0,9}:',
    re.IGNORECASE,
)
_IMATRIX_NAMES = (b"blk.", b"output", b"token_embd")
_PICKLE = re.compile(rb"\x80[\x02-\x05][^\x00]")


def counts_only(seen: str, also: str = "") -> InputError:
    """Return the error for a file that counts how often each expert was chosen."""
    return InputError(
        f"{seen}; counts only: who was chosen when is lost, so it cannot be replayed",
        "a per-token log",
        _LOG + (f"; {also}" if also else ""),
    )


def first_member(head: bytes) -> bytes:
    """Return the name of a zip archive's first member; empty when it is none."""
    if not head.startswith(b"PK\x03\x04"):
        return b""
    return head[30 : 30 + int.from_bytes(head[26:28], "little")]


@dataclass(frozen=True, slots=True)
class _Known:
    """A kind of file, and what to do instead of reading it."""

    what: str
    test: Callable[[bytes], bool]
    do: str = ""


def _is_imatrix_dat(head: bytes) -> bool:
    size = int.from_bytes(head[4:8], "little")
    return 4 <= size <= 256 and head[8 : 8 + size].startswith(_IMATRIX_NAMES) and head[8 : 8 + size].isascii()


def _first_line(head: bytes) -> bytes:
    return next((line.strip() for line in head.split(b"\n") if line.strip() and not line.startswith(b"#")), b"")


def _is_count_json(head: bytes) -> bool:
    if head.lstrip()[:1] not in {b"{", b"["} or _CHOSEN_KEY.search(head):
        return False
    single = _COUNT_VALUE.search(head) and _ONE_EXPERT.search(head)
    return bool(single or _COUNT_KEY.search(head))


_COUNTS = (
    _Known("a CSV of counts per layer and expert", lambda head: bool(_COUNT_HEADER.fullmatch(_first_line(head)))),
    _Known("a CSV with a column per expert", lambda head: bool(_WIDE_HEADER.fullmatch(_first_line(head)))),
    _Known("JSON of counts per expert", _is_count_json),
    _Known("a llama.cpp imatrix (GGUF)", lambda head: head.startswith(b"GGUF") and b"imatrix" in head),
    _Known("a llama.cpp imatrix (.dat)", _is_imatrix_dat),
)


def _is_page(head: bytes) -> bool:
    return head.lstrip()[:15].lower().startswith((b"<!doctype html", b"<html", b"<head", b"<?xml"))


def _is_safetensors(head: bytes) -> bool:
    return 2 <= int.from_bytes(head[:8], "little") <= 1 << 30 and head[8:10] in {b'{"', b"{ ", b"{}"}


def _is_pickle(head: bytes) -> bool:
    return bool(_PICKLE.match(head)) or first_member(head).endswith(b"data.pkl")


_CONVERT = "convert it to CSV or JSON lines; " + _LOG
_MODEL = "a model has no trace in it: run it, and " + _LOG
_FOREIGN = (
    _Known("a model in GGUF", lambda head: head.startswith(b"GGUF") and b"imatrix" not in head, _MODEL),
    _Known("a model in safetensors", _is_safetensors, _MODEL),
    _Known(
        "a pickle (.pt, .pkl), which is a program and is not run",
        _is_pickle,
        "np.save(FILE, ids) with ids.shape == (tokens, layers, k), where you trust it",
    ),
    _Known(
        "a zip archive",
        lambda head: (
            head.startswith((b"PK\x03\x04", b"PK\x05\x06")) and not first_member(head).endswith((b".npy", b"data.pkl"))
        ),
        "unzip it, and give the trace in it",
    ),
    _Known("a tar archive", lambda head: head[257:262] == b"ustar", "tar -xf it, and give the trace in it"),
    _Known("a Parquet file", lambda head: head.startswith(b"PAR1"), _CONVERT),
    _Known("an Arrow file", lambda head: head.startswith(b"ARROW1"), _CONVERT),
    _Known("an HDF5 file", lambda head: head.startswith(b"\x89HDF\r\n\x1a\n"), _CONVERT),
    _Known("an SQLite database", lambda head: head.startswith(b"SQLite format 3\0"), _CONVERT),
    _Known("a web page or XML, perhaps an error saved as the file", _is_page, "download it again, and look at it"),
    _Known(
        "a Git LFS pointer, not the file itself",
        lambda head: head.startswith(b"version https://git-lfs.github.com/spec/"),
        "git lfs pull",
    ),
    _Known(
        "text in UTF-16, as some Windows shells write it",
        lambda head: head.startswith((b"\xff\xfe", b"\xfe\xff")),
        "iconv -f UTF-16 -t UTF-8",
    ),
)


def _find(known: tuple[_Known, ...], source: Source) -> _Known | None:
    return next((one for one in known if one.test(source.head)), None)


@reader("counts-only", lambda source: _find(_COUNTS, source) is not None, refuses=True)
def refuse_counts(source: Source, hints: Hints) -> NoReturn:
    """Counts per layer and expert (CSV, JSON, imatrix): refused, they do not tell who was chosen when."""
    del hints
    found = _find(_COUNTS, source)
    raise counts_only(f"{source.path} is {found.what if found else 'said to be counts'}")


@reader("no-trace", lambda source: _find(_FOREIGN, source) is not None, refuses=True)
def refuse_foreign(source: Source, hints: Hints) -> NoReturn:
    """Models, pickles, archives, tables, web pages, LFS pointers: refused, each with what to do instead."""
    del hints
    found = _find(_FOREIGN, source)
    raise InputError(
        f"{source.path} is {found.what if found else 'said to be no trace'}", _WANTED, found.do if found else _LOG
    )
