"""Generated models: the same bytes from the same seed, aligned, labelled, and nothing left of a failed one."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path

import pytest

from pytest_moetier.engine import synthetic
from pytest_moetier.engine.selftest import check_engine, job_for, run_plainly
from pytest_moetier.errors import InputError

gguf = pytest.importorskip("gguf")


def test_a_model_is_its_seed_and_says_that_it_is_synthetic(tiny: Path, tmp_path: Path) -> None:
    again = synthetic.write_model(tmp_path / "again.gguf", synthetic.TINY)
    other = synthetic.write_model(tmp_path / "other.gguf", synthetic.TINY, seed=2)
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in (tiny, again, other)]
    assert digests[0] == digests[1] != digests[2]
    fields = gguf.GGUFReader(tiny).fields
    assert fields["moetier.synthetic"].contents() is True
    assert fields["general.name"].contents() == "synthetic-tiny-olmoe-q8_0-seed1234"


@pytest.mark.parametrize("quantisation", ["q8_0", "q4_0"])
def test_experts_are_as_large_as_the_shape_says_and_begin_on_a_page(tmp_path: Path, quantisation: str) -> None:
    model = synthetic.write_model(tmp_path / "m.gguf", synthetic.TINY, quantisation=quantisation)
    tensors = {one.name: one for one in gguf.GGUFReader(model).tensors}
    parts = [tensors[f"blk.1.ffn_{part}_exps.weight"] for part in ("gate", "up", "down")]
    assert sum(one.n_bytes for one in parts) == 8 * synthetic.TINY.expert_bytes(quantisation)
    assert {int(one.data_offset) % synthetic.ALIGNMENT for one in parts} == {0}


def test_a_pressure_models_experts_are_whole_pages_and_under_a_gigabyte() -> None:
    shape = synthetic.PRESSURE
    assert shape.expert_bytes("q8_0") // 3 % 4096 == 0
    assert 0.8e9 < shape.layers * shape.experts * shape.expert_bytes("q8_0") < 0.9e9


@pytest.mark.parametrize("architecture", synthetic.ARCHITECTURES)
@pytest.mark.parametrize("quantisation", ["q8_0", "q4_0"])
def test_a_tiny_models_output_is_not_degenerate(tmp_path: Path, architecture: str, quantisation: str) -> None:
    pytest.importorskip("xllamacpp")
    model = tmp_path / "m.gguf"
    synthetic.write_model(model, synthetic.TINY, architecture=architecture, quantisation=quantisation)
    ids = run_plainly(job_for(model, tokens=48))[-1]["ids"]
    assert len(set(ids)) >= 12
    assert Counter(ids).most_common(1)[0][1] <= 24


def test_the_engine_computes_what_we_compute() -> None:
    pytest.importorskip("xllamacpp")
    facts = check_engine()
    assert (facts.backend, facts.compared) == ("CPU", 8 + 1 + 5 * 2)  # the last layer of a prompt is its last token


def test_nothing_is_left_of_a_model_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        synthetic.write_model(tmp_path / "no" / "m.gguf", synthetic.TINY)
    with pytest.raises(InputError, match="'q2_k'; expected q8_0 or q4_0"):
        synthetic.write_model(tmp_path / "m.gguf", synthetic.TINY, quantisation="q2_k")
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_left_of_a_model_on_a_full_disk(tmp_path: Path) -> None:
    full = Path("/dev/full")
    link = tmp_path / "m.gguf"
    link.symlink_to(full)
    with pytest.raises(InputError, match="No space left"):
        synthetic.write_model(link, synthetic.TINY)
    assert list(tmp_path.iterdir()) == []
    assert full.exists()
