"""Plans: what the trace issued is what is read, and a file that is cut off, foreign or damaged is refused by name."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_moetier.errors import InputError
from pytest_moetier.plan import (
    HEADER_BYTES,
    THROWAWAY,
    Plan,
    build_plan,
    cold_plan,
    read_plan,
    shuffled_plan,
    write_plan,
)
from pytest_moetier.pool.manifest import Manifest
from pytest_moetier.trace.records import NORMAL, SPEC_ACCEPT, SPEC_FALLBACK, Trace, make_trace
from pytest_moetier.trace.synth import synth_trace


def pool(**changed: Any) -> Manifest:
    parts: dict[str, Any] = {
        "name": "small",
        "profile": "custom",
        "pool_id": 0xFEDCBA9876543210,
        "layers": (0, 1),
        "experts": 8,
        "k": 2,
        "expert_bytes": (4096, 8192),
    }
    return Manifest(**(parts | changed))


def speculative() -> Trace:
    """Layers 5 and 9, k = 2: a normal iteration, an accept (2k ids a layer), a fallback (two records a layer)."""
    return make_trace(
        iteration=[0, 0, 1, 1, 2, 2, 2, 2],
        layer=[5, 9, 5, 9, 5, 9, 5, 9],
        kind=[NORMAL] * 2 + [SPEC_ACCEPT] * 2 + [SPEC_FALLBACK] * 4,
        offsets=[0, 2, 4, 8, 12, 14, 16, 18, 20],
        experts=[7, 3, 0, 1, 3, 7, 7, 2, 1, 0, 0, 5, 4, 6, 1, 2, 6, 4, 2, 1],
        n_experts=8,
        k=2,
        synthetic=False,
        source="by hand",
    )


def arrays(plan: Plan) -> dict[str, Any]:
    names = [name for name in Plan.__dataclass_fields__ if name != "layer_map"]
    return {name: getattr(plan, name) for name in names}


def assert_equal(one: Plan, other: Plan) -> None:
    for name, value in arrays(one).items():
        found = getattr(other, name)
        if isinstance(value, np.ndarray):
            assert value.dtype == found.dtype, name
            assert value.tolist() == found.tolist(), name
        else:
            assert value == found, name


def test_every_selected_expert_is_one_access_in_the_order_issued() -> None:
    plan = build_plan(speculative(), pool())
    reads = [(int(plan.expert_layer[at]), int(plan.expert_id[at])) for at in plan.sequence]
    assert reads[:4] == [(0, 7), (0, 3), (1, 0), (1, 1)]
    # the accept issues both its passes, with the expert that both chose read twice; the fallback replays both tries
    assert reads[4:12] == [(0, 3), (0, 7), (0, 7), (0, 2), (1, 1), (1, 0), (1, 0), (1, 5)]
    assert reads[12:] == [(0, 4), (0, 6), (1, 1), (1, 2), (0, 6), (0, 4), (1, 2), (1, 1)]
    assert plan.iterations.tolist() == [0, 4, 12, 20]
    assert plan.iteration_bytes.tolist() == [24576, 49152, 49152]
    assert plan.total_bytes == 10 * 4096 + 10 * 8192
    assert plan.layer_map == ((5, 0), (9, 1))
    assert (plan.stamped, plan.synthetic_trace, plan.synthetic_pool) == (True, False, True)
    assert (plan.n_experts, plan.pool_bytes) == (16, 8 * 12288)


def test_a_plan_may_be_cut_to_its_first_iterations() -> None:
    plan = build_plan(speculative(), pool(), iterations=2)
    assert plan.iterations.tolist() == [0, 4, 12]
    assert plan.n_accesses == 12
    with pytest.raises(InputError, match="4 iterations asked for; expected 1 to 3"):
        build_plan(speculative(), pool(), iterations=4)


def test_a_trace_with_fewer_layers_uses_the_pools_first() -> None:
    plan = build_plan(speculative(), pool(layers=(3, 4, 5), expert_bytes=(4096,) * 3))
    assert plan.layer_map == ((5, 3), (9, 4))
    assert sorted(set(plan.expert_layer[plan.sequence].tolist())) == [3, 4]


def test_more_layers_or_ids_than_the_pool_has_are_refused() -> None:
    with pytest.raises(InputError, match=r"the trace has 2 layers, the pool small has 1.*--layers 1"):
        build_plan(speculative(), pool(layers=(0,), expert_bytes=(4096,)))
    with pytest.raises(InputError, match="selects expert 7 in layer 5; expected an id below 7"):
        build_plan(speculative(), pool(experts=7))


@given(experts=st.integers(1, 16), iterations=st.integers(1, 20), seed=st.integers(0, 2**32))
def test_a_shuffled_plan_reads_the_first_experts_once_an_iteration(experts: int, iterations: int, seed: int) -> None:
    plan = shuffled_plan(pool(), experts, iterations, seed)
    rows = plan.sequence.reshape(iterations, experts)
    assert (np.sort(rows, axis=1) == np.arange(experts)).all()
    assert plan.iterations.tolist() == list(range(0, experts * iterations + 1, experts))
    assert plan.sequence.tolist() == shuffled_plan(pool(), experts, iterations, seed).sequence.tolist()
    assert plan.synthetic_trace


def test_a_shuffled_plans_orders_differ_by_iteration_and_by_seed() -> None:
    rows = shuffled_plan(pool(), 16, 12, 1).sequence.reshape(12, 16).tolist()
    assert len({tuple(row) for row in rows}) == 12
    assert rows != shuffled_plan(pool(), 16, 12, 2).sequence.reshape(12, 16).tolist()


@pytest.mark.parametrize(("experts", "iterations"), [(0, 1), (17, 1), (4, 0)])
def test_a_shuffled_plan_of_nothing_or_beyond_the_pool_is_refused(experts: int, iterations: int) -> None:
    with pytest.raises(InputError, match=rf"^{iterations} reads of {experts} experts; expected 1 to 16"):
        shuffled_plan(pool(), experts, iterations, 0)


@pytest.mark.parametrize("throwaway", [True, False])
def test_a_plan_says_whether_its_pool_may_be_written_to(tmp_path: Path, *, throwaway: bool) -> None:
    for plan in (
        build_plan(speculative(), pool(throwaway=throwaway)),
        cold_plan(pool(throwaway=throwaway), 4, seed=0),
        shuffled_plan(pool(throwaway=throwaway), 4, 2, 0),
    ):
        assert bool(plan.flags & THROWAWAY) == throwaway
        write_plan(plan, tmp_path / "plan")
        assert read_plan(tmp_path / "plan").flags == plan.flags


def test_the_header_is_laid_out_as_the_replayer_reads_it(tmp_path: Path) -> None:
    plan = build_plan(speculative(), pool(layout="one_file"))
    write_plan(plan, tmp_path / "plan")
    data = (tmp_path / "plan").read_bytes()
    assert struct.unpack_from("<8sIIQ", data) == (b"MOEPLAN\0", 1, 160, len(data))
    assert struct.unpack_from("<6Q", data, 24) == (3, 20, 16, 16, 1, len("experts/experts.bin"))
    offsets = struct.unpack_from("<6Q", data, 72)
    assert offsets[0] == 160
    assert all(offset % 8 == 0 for offset in offsets)
    assert struct.unpack_from("<QIIQIIII", data, 120) == (
        0xFEDCBA9876543210,
        5,
        4096,
        20 * 6144,
        0,
        zlib.crc32(data[160:]),
        0,
        zlib.crc32(data[:156]),
    )
    assert struct.unpack_from("<4Q", data, offsets[0]) == (0, 4, 12, 20)
    assert struct.unpack_from("<4I", data, offsets[1]) == (7, 3, 8, 9)
    assert struct.unpack_from("<IIQIIQ", data, offsets[2] + 32 * 9) == (1, 1, 9, 1, 0, 8192)
    assert struct.unpack_from("<IIQQ", data, offsets[3] + 24 * 9) == (0, 0, 8 * 4096 + 8192, 8192)
    assert struct.unpack_from("<QIIQ", data, offsets[4]) == (0, 19, 0, 8 * 12288)
    assert data[offsets[5] : offsets[5] + 19] == b"experts/experts.bin"


@settings(max_examples=40, deadline=None)
@given(
    layers=st.integers(1, 4),
    experts=st.integers(1, 40),
    layout=st.sampled_from(["file_per_expert", "one_file"]),
    iterations=st.integers(1, 12),
    seed=st.integers(0, 2**64 - 1),
    pages=st.lists(st.integers(1, 5000), min_size=4, max_size=4),
    data=st.data(),
)
def test_what_is_written_is_read_back(  # noqa: PLR0913
    tmp_path_factory: pytest.TempPathFactory,
    *,
    layers: int,
    experts: int,
    layout: str,
    iterations: int,
    seed: int,
    pages: list[int],
    data: st.DataObject,
) -> None:
    k = data.draw(st.integers(1, experts))
    sizes = tuple(4096 * count for count in pages[:layers])
    manifest = pool(layers=tuple(range(layers)), experts=experts, k=k, expert_bytes=sizes, layout=layout, pool_id=seed)
    plan = build_plan(synth_trace(layers=layers, iterations=iterations, seed=seed, experts=experts, k=k), manifest)
    path = tmp_path_factory.mktemp("plan") / "plan"
    write_plan(plan, path)
    assert_equal(plan, read_plan(path))


def test_a_plan_is_private_and_never_written_through_a_link(tmp_path: Path) -> None:
    plan = build_plan(speculative(), pool())
    write_plan(plan, tmp_path / "plan")
    assert (tmp_path / "plan").stat().st_mode & 0o777 == 0o600
    (tmp_path / "link").symlink_to(tmp_path / "plan")
    with pytest.raises(InputError, match="is a symbolic link"):
        write_plan(plan, tmp_path / "link")
    with pytest.raises(InputError, match="cannot be written: No such file"):
        write_plan(plan, tmp_path / "none" / "plan")


def written(tmp_path: Path) -> Path:
    write_plan(build_plan(speculative(), pool()), tmp_path / "plan")
    return tmp_path / "plan"


def sealed(data: bytearray) -> bytes:
    """Return ``data`` with both checksums made right again, as a careful forger would."""
    struct.pack_into("<I", data, 148, zlib.crc32(data[HEADER_BYTES:]))
    struct.pack_into("<I", data, 156, zlib.crc32(data[:156]))
    return bytes(data)


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (0, "it has 0 bytes"),
        (5, "it has 5 bytes"),
        (100, "it is cut off after 100 bytes"),
        (160, "it has 160 bytes; expected .* as its header states"),
        (-1, "is it cut off"),
    ],
)
def test_a_truncated_plan_is_refused(tmp_path: Path, size: int, message: str) -> None:
    path = written(tmp_path)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(InputError, match=message):
        read_plan(path)


def test_a_foreign_missing_or_longer_file_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data + b"\0" * 8)
    with pytest.raises(InputError, match=f"it has {len(data) + 8} bytes; expected {len(data)}"):
        read_plan(path)
    path.write_bytes(b"\x7fELF" + bytes(400))
    with pytest.raises(InputError, match="it is no plan file; expected the magic MOEPLAN"):
        read_plan(path)
    with pytest.raises(InputError, match="No such file"):
        read_plan(tmp_path / "none")


@settings(max_examples=60, deadline=None)
@given(at=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_any_flipped_bit_is_noticed(tmp_path_factory: pytest.TempPathFactory, at: int, bit: int) -> None:
    path = written(tmp_path_factory.mktemp("plan"))
    data = bytearray(path.read_bytes())
    data[at % len(data)] ^= 1 << bit
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"plan .*: "):
        read_plan(path)


def poke(layout: str, section: int, offset: int, value: int) -> Callable[[bytearray], None]:
    """Return a change of one number of a section (0 iterations ... 5 strings)."""

    def change(data: bytearray) -> None:
        (start,) = struct.unpack_from("<Q", data, 72 + 8 * section)
        struct.pack_into(layout, data, start + offset, value)

    return change


def poke_header(layout: str, offset: int, value: int) -> Callable[[bytearray], None]:
    return lambda data: struct.pack_into(layout, data, offset, value)


def rename(new: bytes) -> Callable[[bytearray], None]:
    def change(data: bytearray) -> None:
        (start,) = struct.unpack_from("<Q", data, 112)
        data[start : start + len(new)] = new

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (poke_header("<I", 8, 2), "version 2; expected version 1"),
        (poke_header("<I", 12, 128), "header_bytes 128"),
        (poke_header("<I", 128, 64), "flags 0x40"),
        (poke_header("<I", 132, 8192), "pages of 8192 bytes"),
        (poke_header("<Q", 136, 1), "its accesses read 122880 bytes; expected 1 as its header states"),
        (poke_header("<Q", 32, 0), "0 accesses"),
        (poke_header("<Q", 24, 2**61), "its iterations take bytes 160 to"),
        (poke_header("<Q", 32, 2**62), "its sequence take bytes"),
        (poke_header("<Q", 48, 2**60), "its extents take bytes"),
        (poke_header("<Q", 80, 164), "8-byte aligned"),
        (poke_header("<Q", 80, 0), "8-byte aligned within 160"),
        (poke_header("<Q", 64, 2**63), "its strings take bytes"),
        (poke("<Q", 0, 8, 13), "iterations do not divide its accesses"),
        (poke("<Q", 0, 24, 19), "do not divide its accesses; expected first accesses rising from 0 to 20"),
        (poke("<I", 1, 12, 16), "an access to expert 16; expected indices below 16"),
        (poke("<Q", 2, 8, 17), "an expert without extents"),
        (poke("<I", 2, 16, 0), "an expert without extents; expected at least one"),
        (poke("<I", 2, 16, 17), "extents lie outside the table"),
        (poke("<Q", 2, 24, 4095), "size is not the sum of its extents"),
        (poke("<I", 3, 0, 16), "an extent of file 16; expected files below 16"),
        (
            poke("<Q", 3, 8, 1),
            "extent 0 reads 4096 bytes at 1 of experts/000/0000; expected bytes within the file's 4096",
        ),
        (poke("<Q", 3, 16, 2**64 - 1), "extent 0 reads"),
        (poke("<Q", 4, 0, 2**40), "a path at 1099511627776"),
        (rename(b"/xperts/000/0000"), "the path '/xperts/000/0000'; expected a path inside the pool's root"),
        (rename(b"../erts/000/0000"), "the path '../erts/000/0000'"),
        (rename(b"experts/../../00"), "the path 'experts/../../00'"),
        (rename(b"experts/000/000\0"), "expected a path inside"),
        (rename(b"\xff\xfe"), "a path that is not UTF-8"),
    ],
)
def test_a_forged_plan_with_right_checksums_is_refused_by_what_is_wrong(
    tmp_path: Path, change: Callable[[bytearray], None], message: str
) -> None:
    path = written(tmp_path)
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(sealed(data))
    with pytest.raises(InputError, match=message):
        read_plan(path)


def test_absolute_paths_need_their_flag(tmp_path: Path) -> None:
    path = written(tmp_path)
    data = bytearray(path.read_bytes())
    rename(b"/xperts/000/0000")(data)
    struct.pack_into("<I", data, 128, 5 | 8)
    path.write_bytes(sealed(data))
    assert read_plan(path).files[0].path == "/xperts/000/0000"


@pytest.mark.parametrize("count", [1, 2, 7, 16])
def test_a_cold_plan_reads_distinct_experts_once_spread_over_the_layers(count: int) -> None:
    plan = cold_plan(pool(), count, seed=3)
    assert plan.n_iterations == 1
    assert len(set(plan.sequence.tolist())) == plan.n_accesses == count
    per_layer = np.bincount(plan.expert_layer[plan.sequence], minlength=2)
    assert per_layer.max() - per_layer.min() <= 1
    assert plan.sequence.tolist() == cold_plan(pool(), count, seed=3).sequence.tolist()


def test_a_cold_plan_is_seeded_and_bounded_by_the_pool() -> None:
    assert cold_plan(pool(), 8, seed=3).sequence.tolist() != cold_plan(pool(), 8, seed=4).sequence.tolist()
    with pytest.raises(InputError, match="a cold read of 17 experts; expected 1 to 16"):
        cold_plan(pool(), 17, seed=0)


def test_a_plan_of_a_real_pools_size_holds_every_expert_of_it() -> None:
    manifest = pool(layers=tuple(range(4)), experts=896, k=16, expert_bytes=(1 << 20,) * 4)
    plan = build_plan(synth_trace(layers=4, iterations=100), manifest)
    assert (plan.n_experts, len(plan.files), plan.pool_bytes) == (3584, 3584, 3584 << 20)
    assert plan.n_accesses == 4 * 16 * (87 + 2 * 5 + 2 * 8)
