"""The findings on an engine, run as a user runs them: on made-up runs of known figures, and on a real engine's."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from curves import BENCH
from known import module_of

from pytest_moetier.engine.arm import Arm
from pytest_moetier.engine.asked import DeviceRate, EngineAsked, Ran, Wanted
from pytest_moetier.engine.campaign import EngineCampaign, EngineSettings, Measured, ProvedEngineRun
from pytest_moetier.engine.run import EngineFacts, EngineOomRun, EngineRun, PolicyTotals, Resident, Token
from pytest_moetier.errors import UnsupportedHostError
from pytest_moetier.figures import Figures
from pytest_moetier.finding import read_bounds
from pytest_moetier.progress import Silent
from pytest_moetier.proof import Proof, ProvedRun
from pytest_moetier.trace.records import BATCH, NORMAL, Trace, make_trace

ENGINE = module_of("engine")
MB = 1_000_000
FACTS = EngineFacts("1", "CPU", "AVX2", 512, 512, 512, 1024, ("model.gguf",), 128, (), "madvise")
Spoil = Callable[[Wanted, Measured], None]
Run = Callable[..., dict[str, dict[str, Any]]]

# Seconds, major faults and device bytes a token of what upholds every bound.
UPHOLD: Mapping[Wanted, tuple[float, int, int]] = {
    ENGINE.PLAIN: (0.8, 200, 100 * MB),
    ENGINE.WILLNEED: (0.5, 50, 60 * MB),
    ENGINE.POPULATE: (0.5, 40, 60 * MB),
    ENGINE.RANDOM: (0.9, 5000, 60 * MB),
    ENGINE.LOCKED: (0.7, 100, 90 * MB),
    ENGINE.KEPT: (0.6, 60, 70 * MB),
    ENGINE.KEPT_LOCKED: (0.5, 20, 65 * MB),
    ENGINE.BACKGROUND: (0.8, 100, 70 * MB),
    ENGINE.COARSE: (0.25, 20, 35 * MB),
    ENGINE.ADMITTED: (0.2, 10, 10 * MB),
    ENGINE.DROPPED: (0.4, 100, 100 * MB),
    ENGINE.RESIDENT: (0.1, 0, 0),
    ENGINE.TRACED: (0.1, 0, 0),
    **{one: (0.5, 1000 - at, (at + 1) * 20 * MB) for at, one in enumerate(ENGINE.AHEAD)},
}
SECONDS = {
    "page_cache": 0.5,
    "mmap_pread": 0.5,
    "write_shared": 1.2,
    "user_lru25": 0.8,
    "user_lru50": 0.9,
    "user_lru": 1.0,
}


KILLED = EngineOomRun(  # type: ignore[arg-type]  # of what was enforced, nothing is read
    **dict.fromkeys(EngineOomRun.__dataclass_fields__, None)
    | {"scope": SimpleNamespace(oom_kills=1), "tokens": 0, "seconds": 0.7}
)


def engine_run(wanted: Ran, round_index: int, figures: tuple[float, int, int], *, synthetic: bool = True) -> EngineRun:
    """Return a run whose every token has the same seconds and faults."""
    seconds, faults, read = figures
    count = wanted.tokens or 16
    tokens = tuple(Token(at, "prefill" if at == 0 else "decode", seconds, faults, 0) for at in range(count))
    gate = SimpleNamespace(resident=Resident(61 * MB, 0))
    return EngineRun(  # type: ignore[arg-type]  # of gates and intervals, what is read
        **dict.fromkeys(EngineRun.__dataclass_fields__, None)
        | {
            "arm": wanted.arm,
            "round": round_index,
            "order": 0,
            "facts": FACTS,
            "synthetic": synthetic,
            "model": "made",
            "expert_bytes": 340 * MB if wanted.arm.quantisation == "q8_0" else 180 * MB,
            "spine_bytes": MB,
            "load_seconds": 1.0,
            "prefill_seconds": 1.0,
            "decode_seconds": seconds * (count - 1),
            "prompt_tokens": 8,
            "tokens": tokens,
            "sha256": "same",
            "decode": gate,
            "end": gate,
            "decoding": SimpleNamespace(device_read_bytes=read * (count - 1)),
            "policy": PolicyTotals(),
            "drop_seconds": 0.0,
            "warnings": (),
        }
    )


def trace_of(*, synthetic: bool = True) -> Trace:
    """Return a trace of one layer that chooses four experts of 60 MB in turn, after a prompt that chose one."""
    words: dict[str, Any] = {
        "n_experts": 4,
        "k": 1,
        "synthetic": synthetic,
        "source": "made",
        "expert_bytes": (60 * MB,),
    }

    def part(count: int, kind: int, **more: Any) -> Trace:
        at, offsets = np.arange(count), np.arange(count + 1)
        kinds, ids = np.full(count, kind), ((at - (kind == BATCH)) % 4).tolist()
        return make_trace(iteration=at, layer=at * 0, kind=kinds, offsets=offsets, experts=ids, **words, **more)

    return part(64, NORMAL, prefill=part(1, BATCH))


def measured(wanted: Wanted, *, synthetic: bool = True) -> Measured:
    """Return two proved rounds of what upholds every bound; three of a pair."""
    proof = Proof(())
    found = Measured(wanted)
    if isinstance(wanted, DeviceRate):
        found.rates = [147.0 * MB, 148.0 * MB, 149.0 * MB]
        return found
    for at in range(3 if wanted.pair else 2):
        if isinstance(wanted, Ran) and wanted.direct:
            found.runs.append(ProvedEngineRun(KILLED, proof))
        elif isinstance(wanted, Ran):
            run = engine_run(wanted, at, UPHOLD[wanted], synthetic=synthetic)
            found.runs.append(ProvedEngineRun(run, proof))
        else:
            figures = Figures(
                SECONDS[wanted.mode],
                logical_bytes=1.0,
                device_bytes=1.0,
                written_bytes=1.0,
                amplification_over_belady=1.1,
            )
            found.runs.append(ProvedRun(None, figures, proof))  # type: ignore[arg-type]
        found.proofs.append(proof)
    return found


def _as_it_is(_wanted: Wanted, _found: Measured) -> None:
    pass


@pytest.fixture
def findings(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the shipped findings on made-up runs; return the results by test, and the output as ``said``."""

    def run(
        *words: str, spoil: Spoil = lambda _wanted, _found: None, synthetic: bool = True
    ) -> dict[str, dict[str, Any]]:
        def measure(self: EngineCampaign, asked: Iterable[Wanted], _lock: object) -> None:
            for one in asked:
                self.results[one.id] = measured(one, synthetic=synthetic)
                spoil(one, self.results[one.id])
            self.trace = trace_of(synthetic=synthetic)

        monkeypatch.setattr(EngineCampaign, "measure", measure)
        storage = f"--benchmark-storage=file://{pytester.path / 'stored'}"
        options = ("-p", "no:cacheprovider", "--moetier-json=v.json", storage, "--benchmark-autosave")
        done = pytester.runpytest_inprocess(BENCH / "test_engine.py", *options, *words)
        results = json.loads((pytester.path / "v.json").read_text())["results"]
        return {"said": {"text": done.stdout.str(), "status": done.ret}, **{one["test"]: one for one in results}}

    return run


def test_every_bound_on_an_engine_is_judged_and_holds_where_what_is_claimed_was_measured(findings: Run) -> None:
    found = findings()
    said = found.pop("said")
    assert {name for name, one in found.items() if one["verdict"] != "supported"} == {
        "test_captured_skew[engine]",
        "test_captured_locality[engine]",
    }
    shipped = {one.id for one in read_bounds(BENCH / "bounds.yaml") if one.id.startswith("engine.")}
    judged = {bound["id"] for one in found.values() for bound in one["bounds"]}
    assert judged - {"capacity.device_bytes_spread", "capacity.at_least_belady"} == shipped
    assert found["test_admission[engine]"]["metrics"]["admission_speedup"]["values"] == pytest.approx([2.0] * 3)
    assert found["test_page_cache_against_lru[engine]"]["metrics"]["lru_ratio"]["values"] == pytest.approx([1.0] * 3)
    # 340/180 of the bytes take 0.6/0.25 of the time
    killed = found["test_killed_load[plain-ra128-C40pct-direct_io]"]["metrics"]
    assert {name: one["values"] for name, one in killed.items()} == {
        "oom_kills": [1.0, 1.0],
        "tokens_before": [0.0, 0.0],
        "seconds_to_kill": [0.7, 0.7],
    }
    slower = found["test_bytes_against_speed[engine]"]["metrics"]["engine_slower_than_bytes"]["values"]
    assert slower == pytest.approx([0.6 / 0.25 * 180 / 340] * 3)
    assert said["status"] == 0


def test_a_random_model_is_called_synthetic_wherever_it_is_told_of_and_proves_nothing_on_routing(findings: Run) -> None:
    found = findings()
    text = found.pop("said")["text"]
    assert "engine: made (synthetic: random weights, synthetic traces)" in text
    assert all(one["engine"]["synthetic"] for one in found.values())
    assert found["test_captured_skew[engine]"]["verdict"] == "not_examined"
    assert "weights are random" in found["test_captured_skew[engine]"]["reason"]
    assert "--moetier-engine-model" in found["test_captured_skew[engine]"]["reason"]
    assert all("random weights: synthetic" in bound["reason"] for one in found.values() for bound in one["bounds"])


def test_a_trained_model_of_no_known_shape_is_not_called_synthetic_and_has_no_bound_on_routing(findings: Run) -> None:
    found = findings("-k", "captured", synthetic=False)
    text = found.pop("said")["text"]
    assert "synthetic" not in text.partition(" moetier ===")[2]  # above it, what was asked for: a generated one
    skew = found["test_captured_skew[engine]"]
    assert (skew["verdict"], skew["engine"]["synthetic"]) == ("not_examined", False)
    assert "no bound holds" in skew["reason"]
    assert skew["metrics"]["most_distinct_in_64"]["values"] == [4.0]


OPPOSITE: tuple[tuple[Ran, dict[str, Any]], ...] = (
    (ENGINE.RANDOM, {"tokens": (Token(7, "prefill", 0.9, 5000, 0),)}),
    (ENGINE.WILLNEED, {"decoding": SimpleNamespace(device_read_bytes=15 * 120 * MB)}),
    (ENGINE.DROPPED, {"sha256": "other", "decode_seconds": 0.1}),
    (ENGINE.BACKGROUND, {"decode_seconds": 0.1}),
    (ENGINE.COARSE, {"expert_bytes": MB}),
    (ENGINE.KEPT_LOCKED, {"decode_seconds": 90.0}),
    (ENGINE.AHEAD[2], {"decoding": SimpleNamespace(device_read_bytes=7 * MB)}),
)
"""What contradicts a claim each, by the arm whose runs show it."""


def test_the_opposite_refutes_each_claim(findings: Run) -> None:
    def spoil(wanted: Wanted, found: Measured) -> None:
        for changes in (one for arm, one in OPPOSITE if arm == wanted):
            found.runs[:] = [ProvedEngineRun(replace(one.run, **changes), one.proof) for one in found.runs]  # type: ignore[arg-type, type-var]

    found = findings("--moetier-refuted=report", spoil=spoil)
    text = found.pop("said")["text"]
    refuted = {(name, one["id"]) for name in found for one in found[name]["bounds"] if one["verdict"] == "refuted"}
    for test, bound in (
        ("same_tokens", "same_tokens"),
        ("page_cache_against_lru", "lru_ratio"),
        ("hint_willneed", "willneed_bytes"),
        ("admission", "same_tokens_of_pairs"),
        ("admission", "admission_speedup"),
        ("background", "background_slower"),
        ("faults_per_byte", "faults_over_bytes"),
        ("locked_spine", "spine_lock_gain"),
        ("read_ahead", "read_ahead_rises"),
    ):
        assert (f"test_{test}[engine]", f"engine.{bound}") in refuted
        assert f"refuted engine {test}: " in text


def test_an_unproved_arm_is_invalid_is_not_stored_and_leaves_what_rests_on_it_unexamined(
    findings: Run, pytester: pytest.Pytester
) -> None:
    def spoil(wanted: Wanted, found: Measured) -> None:
        if wanted == ENGINE.KEPT:
            found.invalid.append("accounting not proved: foreign_share: 5 MB; next: measure again")

    found = findings("-k", "test_arm or background or locked_spine or hint", spoil=spoil)
    arm = f"test_arm[{ENGINE.KEPT.id}]"
    assert (found[arm]["verdict"], found[arm]["metrics"]) == ("invalid", {})
    assert found["said"]["status"] == 10
    for name in ("background", "locked_spine"):
        assert found[f"test_{name}[engine]"]["verdict"] == "not_examined"
        assert f"no proved run of {ENGINE.KEPT.id}: accounting" in found[f"test_{name}[engine]"]["reason"]
    assert found["test_hint_willneed[engine]"]["verdict"] == "supported"
    (stored,) = (pytester.path / "stored").rglob("*.json")
    known = {one["extra_info"]["moetier"]["cell"]["id"] for one in json.loads(stored.read_text())["benchmarks"]}
    assert ENGINE.PLAIN.id in known
    assert ENGINE.KEPT.id not in known


def test_an_arm_that_the_host_cannot_have_is_skipped_with_its_reason(findings: Run) -> None:
    def spoil(wanted: Wanted, found: Measured) -> None:
        if wanted.quantisation == "q4_0":
            found.skipped = UnsupportedHostError("own.gguf is one model of one quantisation", "a second one")

    found = findings("-k", "test_arm or bytes_against", spoil=spoil)
    for name in (f"test_arm[{ENGINE.COARSE.id}]", "test_bytes_against_speed[engine]"):
        assert found[name]["verdict"] == "not_examined"
        assert "one model of one quantisation" in found[name]["reason"]


def campaign(**words: Any) -> EngineCampaign:
    given = {"folder": Path("/nowhere"), "asked": EngineAsked(), "rounds": 0, "seed": 3, "threads": 2, **words}
    return EngineCampaign(EngineSettings(**given), Silent())


def test_pairs_are_measured_back_to_back_ab_then_ba_and_what_is_captured_comes_first() -> None:
    wanted = [ENGINE.PLAIN, ENGINE.DROPPED, ENGINE.WILLNEED, ENGINE.ADMITTED, ENGINE.TRACED]
    order = list(campaign()._order(wanted))  # noqa: SLF001
    assert order[0] == (0, ENGINE.TRACED)
    assert len(order) == 1 + 2 * 2 + 3 * 2
    pairs = [[one for at, one in order if at == number and one.pair] for number in range(3)]
    assert pairs[0] == list(reversed(pairs[1]))
    places = [[place for place, (at, one) in enumerate(order) if at == number and one.pair] for number in range(3)]
    assert all(second - first == 1 for first, second in places)
    assert list(campaign()._order(wanted)) == order  # noqa: SLF001
    assert list(campaign(seed=4)._order(wanted)) != order  # noqa: SLF001
    assert len(list(campaign(rounds=1)._order(wanted))) == 5  # noqa: SLF001


def test_a_users_model_has_one_quantisation_and_its_prompt_may_be_ids() -> None:
    one = campaign(asked=EngineAsked(model=Path("own.gguf"), prompt="3,1,4"))
    with pytest.raises(UnsupportedHostError, match=r"own\.gguf is one model of one quantisation"):
        one._made("q4_0")  # noqa: SLF001
    assert one.settings.asked.words == (3, 1, 4)
    assert EngineAsked(prompt="1, two").words == "1, two"


def test_arms_of_the_findings_have_ids_of_their_own_that_k_takes() -> None:
    ids = [one.id for one in (*ENGINE.ARMS, ENGINE.KILLED, *ENGINE.REPLAYS, ENGINE.RATE)]
    assert len(set(ids)) == len(ids)
    assert not set("".join(ids)) & set("=% ")
    assert Ran(Arm("plain", read_limit=148 * MB), tokens=8).id == "plain-ra128-148MBps-8tokens"


def test_a_real_engine_gives_a_verdict_on_a_model_of_the_users(pytester: pytest.Pytester, tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp")
    pytest.importorskip("gguf")
    from pytest_moetier.engine.synthetic import TINY, write_model  # noqa: PLC0415
    from pytest_moetier.host.loopdev import loop_support  # noqa: PLC0415
    from pytest_moetier.pool.copied import image_of  # noqa: PLC0415

    if os.geteuid() != 0 or loop_support():
        pytest.skip(f"measuring needs root and a loop device: {loop_support()}")
    image_of(write_model(tmp_path / "tiny.gguf", TINY), tmp_path / "image")
    options = (f"--moetier-engine-model={tmp_path / 'image'}", "--moetier-engine-tokens=12", "--moetier-rounds=1")
    also = ("--moetier-refuted=report", "--moetier-wait=200", "--moetier-json=v.json", "-p", "no:cacheprovider")
    done = pytester.runpytest_subprocess(BENCH / "test_engine.py", "-k", "admission", *options, *also)
    found = {one["test"]: one for one in json.loads((pytester.path / "v.json").read_text())["results"]}
    assert found[f"test_arm[{ENGINE.ADMITTED.id}]"]["verdict"] == "supported", done.stdout.str()
    verdict = found["test_admission[engine]"]
    assert verdict["verdict"] in {"supported", "refuted"}
    assert verdict["metrics"]["different_pairs"]["values"] == [0.0]
    assert verdict["engine"]["model"].startswith("synthetic-tiny")
