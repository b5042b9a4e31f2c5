"""A real model is a pool as any other: in place, or copied into an image; its own bytes are what is read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from real_models import (
    EXPERTS,
    STAMPED_BYTES,
    STAMPED_ID,
    expert_bytes,
    merged,
    stamped_gguf,
    stamped_safetensors,
    write_gguf,
)

from pytest_moetier import cli
from pytest_moetier.errors import AccountingError, InputError, UnsupportedHostError
from pytest_moetier.host import blockdev, residency
from pytest_moetier.host.restore import Journal
from pytest_moetier.plan import Plan, shuffled_plan, write_plan
from pytest_moetier.pool.check import check_pool
from pytest_moetier.pool.checkpoint import map_checkpoint
from pytest_moetier.pool.copied import image_of
from pytest_moetier.pool.manifest import Extent, Mapped, load_manifest
from pytest_moetier.pool.opened import OpenPool, inspect_pool, open_pool
from pytest_moetier.pool.temporary import temporary_checkpoint
from pytest_moetier.replayer import Replayer, ReplayOptions
from pytest_moetier.watch.target import watched
from pytest_moetier.workloads import Asked, single

LAYERS = 2
MANY = 16


@pytest.fixture
def model(device_folder: Path) -> Path:
    """A GGUF model on a block device."""
    device_folder.mkdir()
    return write_gguf(device_folder / "model.gguf", merged(0) | merged(1))


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal(tmp_path / "state") as one:
        yield one


@pytest.fixture
def stamped(device_folder: Path, request: pytest.FixtureRequest) -> Path:
    """A model of the format that the test names, in which every expert's bytes say whose they are."""
    device_folder.mkdir()
    if request.param == "gguf":
        return stamped_gguf(device_folder / "model.gguf", LAYERS, MANY)
    return stamped_safetensors(device_folder / "model", LAYERS, MANY)


def replayed(pool: OpenPool, mode: str, plan: Plan, path: Path) -> int:
    """Replay a plan, every page stamp of what is delivered verified, and return how many there were."""
    write_plan(plan, path)
    options = ReplayOptions(mode=mode, passes=("measured",), hits="none")
    with Replayer(options.argv(path, pool.root), pool.pass_fds) as replayer:
        (found,) = replayer.go().passes
    assert (found.bytes, found.accesses) == (plan.total_bytes, plan.n_accesses)
    return found.stamps_checked


@pytest.mark.parametrize("stamped", ["gguf", "safetensors"], indirect=True)
def test_every_mode_delivers_the_models_own_bytes(stamped: Path, tmp_path: Path) -> None:
    with open_pool(stamped) as pool:
        known = replace(pool, manifest=replace(pool.manifest, stamped=True, pool_id=STAMPED_ID))
        assert known.manifest.expert_bytes == (sum(STAMPED_BYTES),) * LAYERS
        plan = shuffled_plan(known.manifest, LAYERS * MANY, 3, seed=1)
        for mode in ("page_cache", "mmap", "direct", "fadv_random", "drop"):
            assert replayed(known, mode, plan, tmp_path / "plan") == 3 * LAYERS * MANY * 5
        # The stamps are a witness: the same files under a map that takes one expert for another are not taken.
        first, *others = known.manifest.checkpoint.layers  # type: ignore[union-attr]
        turned = Mapped("", listed=tuple(first.extents(expert) for expert in (*range(1, MANY), 0)))
        checkpoint = replace(known.manifest.checkpoint, layers=(turned, *others))  # type: ignore[type-var]
        wrong = shuffled_plan(replace(known.manifest, checkpoint=checkpoint), LAYERS * MANY, 1, seed=1)
        with pytest.raises(AccountingError, match="layer 0 expert"):
            replayed(known, "page_cache", wrong, tmp_path / "plan")


def test_an_unstamped_pool_is_replayed_without_stamps_by_itself(model: Path, tmp_path: Path) -> None:
    with open_pool(model) as pool:
        plan = single(pool.manifest, Asked((), iterations=3)).plan
        assert not plan.stamped
        assert replayed(pool, "page_cache", plan, tmp_path / "plan") == 0
        with pytest.raises(InputError, match="not stamped; expected a synthetic pool"):
            check_pool(pool.root, pool.manifest)


def test_only_pages_that_hold_nothing_but_an_expert_must_be_read_for_it(model: Path) -> None:
    pool = map_checkpoint(model)
    plan = shuffled_plan(pool, pool.n_experts, 1, seed=1)
    own = [
        sum(max(0, (one.offset + one.length) // 4096 - -(-one.offset // 4096)) for one in pool.extents(layer, expert))
        for layer in pool.layers
        for expert in range(EXPERTS)
    ]
    assert plan.own_page_bytes.tolist() == [4096 * pages for pages in own]
    assert sum(own) < plan.pool_bytes // 4096


def test_residency_tells_the_experts_from_the_spine_of_the_same_file(stamped_file: Path) -> None:
    with open_pool(stamped_file) as pool:
        assert pool.drop_cache() == 0
        assert (pool.resident_bytes(), pool.spine_resident_bytes()) == (0, 0)
        (run,) = pool.manifest.expert_runs
        (spine,) = pool.manifest.spine_extents
        assert run.length == pool.manifest.total_bytes
        with stamped_file.open("rb") as file:
            residency.libc().posix_fadvise(file.fileno(), 0, 0, 1)  # no read-ahead
            file.seek(spine.offset)
            file.read(spine.length)
        pages = -(-(spine.offset + spine.length) // 4096)
        assert pool.spine_resident_bytes() == pages * 4096
        assert pool.resident_bytes() == 4096  # the page in which both lie
        stamped_file.read_bytes()
        assert pool.resident_bytes() == (-(-(run.offset + run.length) // 4096) - run.offset // 4096) * 4096
        assert pool.drop_cache() == 0


@pytest.fixture
def stamped_file(device_folder: Path) -> Path:
    device_folder.mkdir()
    return stamped_gguf(device_folder / "model.gguf", LAYERS, MANY)


@pytest.mark.usefixtures("needs_loop")
def test_a_model_in_an_image_is_the_same_pool_with_a_device_of_its_own(
    model: Path, tmp_path: Path, journal: Journal
) -> None:
    made = image_of(model, tmp_path / "image", journal)
    assert (made.written_bytes, made.kept_bytes) == (model.stat().st_size, 0)
    assert load_manifest(tmp_path / "image") == replace(map_checkpoint(model), store="image") == made.manifest
    assert image_of(model.parent, tmp_path / "image").kept_bytes == model.stat().st_size
    with open_pool(tmp_path / "image", journal) as pool:
        assert (pool.root / "model.gguf").read_bytes() == model.read_bytes()
        assert [device.name for device in pool.devices] == [pool.loop.device.name]  # type: ignore[union-attr]
        assert expert_bytes(pool.root, pool.manifest, 1, 2) == expert_bytes(model.parent, pool.manifest, 1, 2)
    other = write_gguf(model.with_name("other.gguf"), merged(0))
    with pytest.raises(InputError, match="already holds another pool"):
        image_of(other, tmp_path / "image")


@pytest.mark.usefixtures("needs_loop")
def test_a_copy_that_fails_leaves_nothing_and_one_that_was_killed_is_begun_again(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "image"
    with monkeypatch.context() as patch:
        patch.setattr("pytest_moetier.pool.copied.refuse_sparse", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            image_of(model, folder)
    assert not folder.exists()
    folder.mkdir()
    (folder / "pool.img").write_bytes(b"half")
    assert image_of(model, folder).written_bytes == model.stat().st_size
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes").touch()
    with pytest.raises(InputError, match=r"is not empty \(notes\)"):
        image_of(model, tmp_path / "full")


@pytest.mark.usefixtures("needs_loop")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda one: one["files"][0].__setitem__(1, 17), "checkpoint is .*; expected experts of one size within"),
        (lambda one: one["files"][0].__setitem__(0, "../x"), "checkpoint is .*; expected experts of one size within"),
        (lambda one: one["layers"].pop(), r"expert_bytes is 6984; expected the sizes in extents\.json"),
        (lambda one: one["layers"][0]["slabs"][0].__setitem__(3, 1), r"expert_bytes is 6984; expected the sizes in"),
        (lambda one: one["layers"][0]["slabs"][0].pop(), "does not list a model's extents"),
        (lambda one: one.pop("spine"), "does not list a model's extents"),
    ],
    ids=["short file", "outside", "a layer less", "another size", "no length", "no spine"],
)
def test_extents_that_were_tampered_with_are_refused(
    model: Path, tmp_path: Path, change: Callable[[dict[str, object]], object], message: str
) -> None:
    image_of(model, tmp_path / "image")
    path = tmp_path / "image" / "extents.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=message):
        inspect_pool(tmp_path / "image")


@pytest.mark.parametrize("store", ["image", "plain"])
def test_a_model_that_is_made_for_a_measurement_is_gone_after_it(
    model: Path, tmp_path: Path, journal: Journal, store: str, request: pytest.FixtureRequest
) -> None:
    if store == "image":
        request.getfixturevalue("needs_loop")
    before = set(tmp_path.iterdir())
    with temporary_checkpoint(lambda path: shutil.copy(model, path) and None, tmp_path, journal, store=store) as made:
        with open_pool(made, journal) as pool:
            assert (pool.loop is not None) == (store == "image")
            assert (pool.root / "model.gguf").read_bytes() == model.read_bytes()
        assert len(list(tmp_path.rglob("model.gguf"))) == (1 if store == "image" else 2)
    assert set(tmp_path.iterdir()) == before
    with (
        pytest.raises(InputError, match="is no GGUF file"),
        temporary_checkpoint(lambda path: path.write_bytes(b"junk") and None, tmp_path, journal, store="image"),
    ):
        pass
    assert set(tmp_path.iterdir()) == before


def test_a_model_in_memory_is_refused(model: Path) -> None:
    path = Path("/dev/shm") / f"moetier-{model.parent.parent.name}.gguf"  # noqa: S108 - a tmpfs is what is meant
    try:
        shutil.copy(model, path)
    except OSError:
        pytest.skip("no /dev/shm to write to")
    try:
        with pytest.raises(UnsupportedHostError):
            inspect_pool(path)
    finally:
        path.unlink()


def test_a_model_that_changed_since_it_was_mapped_is_refused(model: Path) -> None:
    with open_pool(model) as pool:
        mapped = pool.manifest
    assert mapped.extents(1, 0)[0] == Extent(0, mapped.slabs(1)[0].offset, 2328)  # type: ignore[index]
    write_gguf(model, merged(0, rows=25) | merged(1))
    assert inspect_pool(model).pool_id != mapped.pool_id


def test_a_model_is_watched_by_its_own_files_experts_and_spine(model: Path) -> None:
    model.read_bytes()
    whole = -(-model.stat().st_size // 4096) * 4096
    dense = write_gguf(model.parents[1] / "dense.gguf", {"blk.0.ffn_up.weight": (3, 3)}, expert_count=-1)
    for path in (model, model.parent):
        found = watched(scope=None, device=None, pids=(), pool=path, plan=None)
        assert found.pool is not None
        assert found.pool.look() == whole
        assert [one.name for one in found.devices] == [one.name for one in blockdev.devices_of(model)]
    found = watched(scope=None, device=None, pids=(), pool=dense, plan=None)  # no pool, and its file all the same
    assert found.pool is not None
    assert found.pool.look() == 4096


def output(capsys: pytest.CaptureFixture[str], *words: str | Path) -> dict[str, object]:
    assert cli.main([*map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)  # type: ignore[no-any-return]


def test_pool_map_says_what_a_model_is_and_where_its_experts_are(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["pool", "map", str(model), "--layer", "1", "--expert", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("# A-Model: maker, gguf in 1 file")
    assert lines[1] == "# 2 layers with E = 4 experts, k = 2: 55.9 KB, 27.9 KB an iteration"
    assert lines[2] == "# layers 0 to 1: 6.98 KB (6984 bytes) an expert, I8"
    assert lines[3] == "# spine: 15.3 KB, of it shared experts 14 KB"
    assert lines[4] == "layer\texpert\tfile\toffset\tlength"
    pool = map_checkpoint(model)
    rows = [f"1\t3\tmodel.gguf\t{one.offset}\t{one.length}" for one in pool.extents(1, 3)]
    assert lines[5:] == rows
    found = output(capsys, "pool", "map", model)
    assert found["model"]["expert_bytes"] == [6984, 6984]  # type: ignore[index]
    assert len(found["extents"]) == 2 * EXPERTS * 3  # type: ignore[arg-type]


@pytest.mark.usefixtures("needs_loop")
def test_pool_create_copies_a_model_and_nothing_else_of_it(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = output(capsys, "pool", "create", model, tmp_path / "image")
    assert (made["layout"], made["store"], made["written_bytes"]) == ("checkpoint", "image", model.stat().st_size)
    assert cli.main(["pool", "create", str(model), str(tmp_path / "two"), "--layers", "1"]) == 2
    assert "with --layers; expected an image of the model as it is" in capsys.readouterr().err
    assert cli.main(["pool", "create", str(tmp_path / "none.gguf"), str(tmp_path / "two")]) == 2
    assert "none.gguf: nothing is there" in capsys.readouterr().err
    assert not (tmp_path / "two").exists()
