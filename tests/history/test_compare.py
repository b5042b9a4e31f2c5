"""Two sides held against each other: verdicts, what they need, and what is not compared."""
# ruff: noqa: S311 - simulated noise is no secret

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest
from recorded import CELL, RECORDED, ROOMY

from pytest_moetier.errors import InputError
from pytest_moetier.finding import Metric
from pytest_moetier.history.compare import Compared, Comparison, Gate, compare_sessions, parse_effect
from pytest_moetier.history.sessions import StoredCell, StoredSession, read_session
from pytest_moetier.history.tables import as_csv, as_json, lines_of

Store = Callable[..., Path]

CONTEXT = {"pool_id": "4c", "trace": "synthetic", "plan_crc": "d7", "iterations": 12, "threads": 2, "lists": []}
GUEST = {"kernel": "6.1", "release": "6.1.0-57-amd64", "accelerator": "tcg", "cpus": 2, "memory_bytes": 1 << 30}
NOISE = (0.99, 1.01, 1.0, 0.995, 1.005, 1.002, 0.998)


def around(middle: float, values: int = 5) -> tuple[float, ...]:
    return tuple(middle * one for one in NOISE[:values])


def cell(name: str = "a", label: str = "host", better: str = "lower", unit: str = "B", **metrics: Any) -> StoredCell:
    """Return a cell, of a guest where a label is given."""
    found = {each: Metric(each, unit, better, tuple(values)) for each, values in metrics.items()}
    guest = None if label == "host" else {**GUEST, "kernel": label, "release": f"{label}.0-57-amd64"}
    cell_id = name if guest is None else f"{name}-k{label}"
    return StoredCell(cell_id, {"kernel": label}, found, CONTEXT, guest, traced=False)


def session(name: str, *cells: StoredCell, **more: Any) -> StoredSession:
    when = datetime(2026, 11, 30, tzinfo=UTC)
    known: dict[str, Any] = {"host": "h", "release": "6.18.44", "commit": ""} | more
    return StoredSession(Path(name), "", when, cells={one.id: one for one in cells}, **known)


def only(then: Sequence[float], now: Sequence[float], better: str = "lower", **terms: Any) -> Compared:
    """Return one metric of one cell compared."""
    sides = [session(name, cell(better=better, x=values)) for name, values in (("then", then), ("now", now))]
    (found,) = compare_sessions(sides[:1], sides[1:], **terms).found
    return found


@pytest.mark.parametrize(
    ("better", "factor", "verdict"),
    [
        ("lower", 1.2, "worse"),
        ("lower", 0.8, "better"),
        ("higher", 1.2, "better"),
        ("higher", 0.8, "worse"),
        ("neither", 1.2, "changed"),
        ("neither", 0.8, "changed"),
        ("lower", 1.001, "same"),
        ("neither", 0.999, "same"),
    ],
)
def test_the_verdict_follows_the_ratio_of_the_medians_and_what_is_better(
    better: str, factor: float, verdict: str
) -> None:
    found = only(around(100), around(100 * factor), better)
    assert (found.verdict, found.ratio) == (verdict, pytest.approx(factor))
    assert found.low < factor < found.high
    assert found.reason == ""


def test_a_difference_below_the_effect_size_is_none_however_sure_it_is() -> None:
    then, now = around(100, 7), tuple(103 * one for one in NOISE)
    assert only(then, now, effect=0.05).verdict == "same"
    found = only(then, now, effect=0.01)
    assert (found.verdict, found.p) == ("worse", pytest.approx(2 / math.comb(14, 7)))


def test_what_overlaps_cannot_be_told() -> None:
    found = only((1.0, 2.0, 3.0, 4.0, 5.0), (1.5, 2.5, 4.5, 5.5, 6.5))
    assert found.verdict == "cannot tell"
    assert found.reason.startswith(
        "the sides overlap (p 0.42 after Holm over one cell), and the interval reaches beyond"
    )


@pytest.mark.parametrize("values", [1, 2, 3, 4])
def test_under_five_rounds_a_side_nothing_is_told_and_it_says_how_many_are_needed(values: int) -> None:
    for sides in ((values, 5), (5, values), (values, values)):
        found = only(around(100, sides[0]), around(200, sides[1]))
        assert found.verdict == "cannot tell"
        said = f"{sides[0]} and {sides[1]} rounds; 5 a side are needed to tell a change from chance over one cell"
        assert found.reason == said


def test_over_many_cells_more_rounds_are_needed_and_it_says_how_many() -> None:
    def told(rounds: int, cells: int) -> list[Compared]:
        sides = [
            session(name, *(cell(f"c{place}", x=around(factor, rounds)) for place in range(cells)))
            for name, factor in (("then", 100), ("now", 150))
        ]
        return list(compare_sessions(sides[:1], sides[1:]).found)

    assert {one.verdict for one in told(5, 6)} == {"worse"}
    seven = told(5, 7)
    assert {one.verdict for one in seven} == {"cannot tell"}  # 7 * 2 / 252 is 5.6%
    assert seven[0].reason == "5 and 5 rounds; 6 a side are needed to tell a change from chance over 7 cells"
    assert {one.verdict for one in told(6, 7)} == {"worse"}


def test_a_cell_with_too_few_rounds_counts_among_those_that_are_corrected_for() -> None:
    sides = [
        session(name, cell("a", x=around(factor)), *(cell(f"c{n}", x=around(100, 2)) for n in range(6)))
        for name, factor in (("then", 100), ("now", 150))
    ]
    found = compare_sessions(sides[:1], sides[1:]).found
    assert (found[0].verdict, found[0].p) == ("cannot tell", pytest.approx(7 * 2 / 252))


@pytest.mark.parametrize(
    ("then", "now", "ratio", "verdict"),
    [
        ((0.0,) * 5, (0.0,) * 5, 1.0, "same"),
        ((0.0,) * 5, (1.0, 2.0, 3.0, 4.0, 5.0), math.inf, "worse"),
        ((1.0, 2.0, 3.0, 4.0, 5.0), (0.0,) * 5, 0.0, "better"),
        ((0.0, 0.0, 0.0, 1.0, 2.0), (0.0, 0.0, 0.0, 1.0, 1.0), 1.0, "cannot tell"),
        ((7.0,) * 5, (7.0,) * 5, 1.0, "same"),
    ],
)
def test_zeros_and_equal_values(then: Sequence[float], now: Sequence[float], ratio: float, verdict: str) -> None:
    found = only(then, now)
    assert (found.ratio, found.verdict) == (ratio, verdict)


def test_values_below_zero_and_other_units_have_no_ratio() -> None:
    found = only((-0.1, 0.0, 0.1, 0.2, 0.3), around(0.2), "neither")
    assert (found.ratio, found.verdict, found.reason) == (None, "cannot tell", "values below zero have no ratio")
    sides = [session(unit, cell(unit=unit, x=around(1))) for unit in ("s/iteration", "s/token")]
    (found,) = compare_sessions(sides[:1], sides[1:], force=True).found
    assert (found.verdict, found.reason) == ("cannot tell", "its units differ: s/iteration and s/token")


def test_wall_times_under_emulation_are_not_judged_and_counters_are() -> None:
    def guest(factor: float) -> StoredCell:
        one = cell("a", "6.1", seconds_per_iteration=around(factor), device_bytes=around(factor))
        return StoredCell(
            one.id, one.words, one.metrics, CONTEXT, {**(one.guest or {}), "emulated": True}, traced=False
        )

    found = compare_sessions([session("t", guest(1))], [session("n", guest(2))]).found
    assert [(one.metric, one.verdict) for one in found] == [
        ("seconds_per_iteration", "cannot tell"),
        ("device_bytes", "worse"),
    ]
    assert found[0].reason.startswith("wall time under emulation")


def test_a_metric_of_one_side_alone_is_not_compared() -> None:
    found = compare_sessions([session("t", cell(x=around(1)))], [session("n", cell(x=around(1), y=around(1)))])
    assert [one.metric for one in found.found] == ["x"]


def compared(then: dict[str, Any], now: dict[str, Any], *, force: bool = False) -> Comparison:
    """Return a cell compared whose context, and guest, are those with changes."""
    sides = []
    for name, change in (("then", then), ("now", now)):
        base = cell(label=change.pop("label", "host"), x=around(1))
        guest = None if base.guest is None else base.guest | change.pop("guest", {})
        one = StoredCell(base.id, base.words, base.metrics, CONTEXT | change, guest, traced=False)
        sides.append(session(name, one))
    return compare_sessions(sides[:1], sides[1:], force=force)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"pool_id": "9c"}, "another pool (4c then, 9c now)"),
        ({"trace": "mine.jsonl"}, "another trace (synthetic then, mine.jsonl now)"),
        ({"plan_crc": "ff", "iterations": 40}, "another plan (d7 then, ff now), iterations (12 then, 40 now)"),
        ({"threads": 8}, "another threads (2 then, 8 now)"),
        ({"compute_seconds": 0.5}, "another compute phase (none then, 0.5 now)"),
        ({"lists": ["markov"]}, "another lists (none then, markov now)"),
        ({"profile": "mine"}, "another profile (none then, mine now)"),
    ],
)
def test_what_was_not_measured_alike_is_refused_unless_forced(changed: dict[str, Any], said: str) -> None:
    plain = {"profile": ""}
    found = compared(dict(plain), plain | changed)
    assert (found.found, found.refused) == ((), {"a": said})
    forced = compared(dict(plain), plain | changed, force=True)
    assert [one.verdict for one in forced.found] == ["same"]
    assert f"forced: a has {said}" in forced.notes


def test_a_profile_that_an_older_file_does_not_say_and_what_does_not_change_the_meaning_are_compared() -> None:
    found = compared(
        {"profile": None, "seed": 1, "cold_factor": 1.0}, {"profile": "mine", "seed": 2, "cold_factor": 1.1}
    )
    assert [one.verdict for one in found.found] == ["same"]


def test_another_machine_or_lane_is_refused() -> None:
    tcg, kvm = ({"label": "6.1", "guest": {"accelerator": one}} for one in ("tcg", "kvm"))
    assert compared(tcg, kvm).refused == {"a-k6.1": "another accelerator (tcg then, kvm now)"}
    more = {"label": "6.1", "guest": {"cpus": 4}}
    assert compared({"label": "6.1"}, more).refused == {"a-k6.1": "another cpus (2 then, 4 now)"}
    roomier = {"label": "6.1", "guest": {"memory_bytes": 2 << 30}}  # what holds C on a kernel
    assert compared({"label": "6.1"}, roomier).refused == {}
    lanes = "another lane (a host then, a virtual machine now)"
    assert compared({}, {"label": "6.1"}).refused == {"a-k6.1": lanes}
    assert f"forced: a-k6.1 has {lanes}" in compared({}, {"label": "6.1"}, force=True).notes


def test_a_cell_that_the_other_side_has_not_is_named() -> None:
    found = compare_sessions([session("t", cell("a", x=around(1)))], [session("n", cell("b", x=around(1)))])
    assert (found.found, found.refused, found.notes) == (
        (),
        {"b": "not in the baseline"},
        ("in the baseline alone: a",),
    )


def test_a_guests_cell_meets_its_like_on_another_kernel_and_both_are_named() -> None:
    then, now = session("t", cell("a", "6.1", x=around(100))), session("n", cell("a", "6.12", x=around(150)))
    result = compare_sessions([then], [now])
    (found,) = result.found
    assert (found.cell, found.verdict, found.units) == ("a-k6.12", "worse", "boots")
    assert result.notes == ("kernel 6.1.0-57-amd64 then, 6.12.0-57-amd64 now", "each value is of a boot of its own")


def test_where_the_baseline_has_several_kernels_one_must_be_named() -> None:
    then = session("t", cell("a", "6.1", x=around(1)), cell("a", "7.3", x=around(1)))
    found = compare_sessions([then], [session("n", cell("a", "6.12", x=around(1)))])
    assert found.refused == {"a-k6.12": "the baseline has it on several kernels (6.1, 7.3): name one, kernel:6.1"}
    same = compare_sessions([then], [session("n", cell("a", "7.3", x=around(2)))])
    assert [one.verdict for one in same.found] == ["worse"]  # that of its own kernel


def test_hosts_and_settings_that_differ_are_named() -> None:
    def guest(value: str) -> StoredCell:
        one = cell("a", "6.1", x=around(1))
        settings = {"settings": {"read_ahead_kb": value, "min_free_kbytes": value}}
        return StoredCell(one.id, one.words, one.metrics, one.context, {**(one.guest or {}), **settings}, traced=False)

    then, now = session("t", guest("128"), host="h1"), session("n", guest("8192"), host="h2")
    notes = compare_sessions([then], [now]).notes
    assert notes[:2] == ("host h1 then, h2 now", "read_ahead_kb 128 then, 8192 now")


def several(prefix: str, *values: Sequence[float], label: str = "host") -> list[StoredSession]:
    return [session(f"{prefix}{place}", cell("a", label, x=one)) for place, one in enumerate(values)]


def test_a_session_is_a_block_so_that_rounds_of_several_are_not_pooled() -> None:
    then = several("t", *(around(100 * one, 3) for one in NOISE[:5]))
    now = several("n", *(around(150 * one, 3) for one in NOISE[:5]))
    result = compare_sessions(then, now)
    (found,) = result.found
    assert (found.units, len(found.then), found.verdict) == ("sessions", 5, "worse")
    assert found.then[0] == pytest.approx(99 * 1.0)  # the median of 0.99, 1.01 and 1.0
    assert "each value is the median of a session" in result.notes
    (few,) = compare_sessions(then[:2], now[:2]).found
    assert (few.verdict, few.reason[:41]) == ("cannot tell", "2 and 2 sessions; 5 a side are needed to ")


def test_rounds_of_one_session_a_side_speak_of_these_two_alone() -> None:
    result = compare_sessions(several("t", around(1)), several("n", around(1)))
    assert result.notes == (
        "rounds of one session a side: it is said of these two sessions, not of two kernels or commits",
    )


def test_boots_of_several_sessions_are_pooled_for_each_is_a_start_of_its_own() -> None:
    then = several("t", *([100.0 * one, 101.0 * one] for one in NOISE[:3]), label="6.1")
    now = several("n", *([150.0 * one, 151.0 * one] for one in NOISE[:3]), label="6.1")
    (found,) = compare_sessions(then, now).found
    assert (found.units, len(found.then), len(found.now), found.verdict) == ("boots", 6, 6, "worse")


def test_statistics_of_a_trace_are_exact() -> None:
    def trace(value: float, iterations: int = 30) -> StoredCell:
        context = {"layers": 2, "experts": 8, "k": 2, "iterations": iterations, "synthetic": True}
        metrics = {"reuse_w1": Metric("reuse_w1", "share", "neither", (value,))}
        return StoredCell("prose", {"domain": "prose"}, metrics, context, None, traced=True)

    def verdict(then: StoredCell, now: StoredCell) -> Comparison:
        return compare_sessions([session("t", then)], [session("n", now)])

    assert [one.verdict for one in verdict(trace(0.5), trace(0.5)).found] == ["same"]
    assert [one.verdict for one in verdict(trace(0.5), trace(0.6)).found] == ["changed"]
    assert verdict(trace(0.5), trace(0.5, 31)).refused == {"prose": "another iterations (30 then, 31 now)"}


def test_a_session_is_never_its_own_baseline_not_even_from_another_file(store: Store, tmp_path: Path) -> None:
    recorded = read_session(RECORDED / "0001_recorded.json")
    for other in (recorded, read_session(RECORDED / "verdicts.json")):
        with pytest.raises(InputError, match="would be compared with itself"):
            compare_sessions([recorded], [other])
    copy = tmp_path / "copy.json"
    copy.write_text((RECORDED / "0001_recorded.json").read_text())
    with pytest.raises(InputError, match=r"copy\.json would be compared with itself"):
        compare_sessions([recorded], [read_session(copy)])
    assert compare_sessions([recorded], [read_session(store(7))]).found


def test_the_repeat_of_a_recorded_session_passes_and_a_planted_regression_does_not(store: Store) -> None:
    gate = Gate.parse("device_bytes:5%")
    then, repeat = (read_session(RECORDED / f"000{number}_recorded.json") for number in (1, 2))
    found = compare_sessions([then], [repeat], gate=gate).gated()
    assert {name: one.verdict for name, one in found.items()} == {CELL: "same", ROOMY: "same"}
    planted = read_session(store(3, 2, device_bytes=1.1))
    found = compare_sessions([then], [planted], gate=gate).gated()
    assert {name: one.verdict for name, one in found.items()} == {CELL: "worse", ROOMY: "same"}
    low, high = f"{found[CELL].low:.3f}", f"{found[CELL].high:.3f}"
    assert str(found[CELL]) == (
        f"device_bytes of {CELL} is worse: 1.13152e+06 then, 1.24955e+06 now B/iteration, 1.104x, 95% interval {low} to"
        f" {high}, effect size 5.0%, 5 and 5 rounds, p 0.016 after Holm"
    )


def test_of_sessions_that_nothing_changed_between_one_in_twenty_at_most_raises_an_alarm() -> None:
    draw, alarmed, found = Random(26), 0, 0
    for _ in range(300):
        sides = [
            session(name, *(cell(f"c{n}", x=[draw.lognormvariate(0, 0.1) for _ in range(5)]) for n in range(6)))
            for name in ("then", "now")
        ]
        verdicts = {one.verdict for one in compare_sessions(sides[:1], sides[1:]).found}
        alarmed += bool(verdicts & {"worse", "better"})
        found += "cannot tell" in verdicts
    assert alarmed / 300 <= 0.06  # noise of 10% makes every effect size of 5% one of chance
    assert found == 300


def test_the_gate_has_its_own_effect_size_and_says_of_what_is_not_compared_that_it_cannot_tell() -> None:
    sides = [session(name, cell("a", x=around(f), y=around(f))) for name, f in (("t", 100), ("n", 108))]
    result = compare_sessions(sides[:1], sides[1:], gate=Gate("x", 0.1))
    assert {one.metric: (one.verdict, one.effect) for one in result.found} == {"x": ("same", 0.1), "y": ("worse", 0.05)}
    assert result.of_cell("b") == ("cannot tell", "x of b is not compared: not observed on both sides")


@pytest.mark.parametrize("text", ["", "x", "x:", ":5%", "x:5", "x:0%", "x:-1%", "x:100%", "x:nan%", "x:five%"])
def test_what_is_no_gate_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"is no (gate|effect size)"):
        Gate.parse(text)


def test_a_gate_is_written_as_it_is_read() -> None:
    assert (Gate.parse("device_bytes:5%"), str(Gate("x", 0.025))) == (Gate("device_bytes", 0.05), "x:2.5%")
    assert parse_effect(" 12.5% ") == 0.125


def test_a_comparison_as_text_json_and_csv(store: Store) -> None:
    then, now = read_session(RECORDED / "0001_recorded.json"), read_session(store(3, 2, device_bytes=1.1))
    result = compare_sessions([then], [now], gate=Gate.parse("device_bytes:5%"))
    lines = lines_of(result)
    assert lines[0] == "0003 / 0001"
    row = next(line for line in lines if line.startswith(f"  {CELL}") and "MB" in line)
    assert row.split()[1:7] == ["1.13", "MB", "1.25", "MB", "5,", "5"]
    assert row.endswith("  worse")
    assert lines[-1] == f"gate device_bytes:5%: 1 regressed ({CELL}), 1 did not"
    document = json.loads(json.dumps(as_json(result), allow_nan=False))
    (found,) = [one for one in document["compared"] if (one["cell"], one["metric"]) == (CELL, "device_bytes")]
    assert (found["verdict"], len(found["then"]), found["effect"]) == ("worse", 5, 0.05)
    head, *rows = as_csv(result).splitlines()
    assert head.startswith("cell,metric,unit,better,units,values_then,median_then,")
    assert len(rows) == len(result.found)
    assert any(row.startswith(f"{CELL},device_bytes,B/iteration,lower,rounds,5,") and ",worse," in row for row in rows)


def test_the_text_names_what_changed_of_the_metrics_that_it_does_not_show() -> None:
    sides = [session(name, cell("a", x=around(1), minor_faults=around(f))) for name, f in (("t", 1), ("n", 2))]
    lines = lines_of(compare_sessions(sides[:1], sides[1:]), ["x"])
    assert "of the other metrics, each corrected alone: minor_faults of a 2.000x (worse)" in lines
