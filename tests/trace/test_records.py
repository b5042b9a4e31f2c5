"""A trace is refused where a record breaks a rule, and counts tokens and iterations apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pytest_moetier.errors import InputError
from pytest_moetier.trace.records import NORMAL, SPEC_ACCEPT, SPEC_FALLBACK, Record, RecordError, make_trace


def speculative(**changed: Any) -> dict[str, Any]:
    """Two layers, k = 2: a normal iteration, an accept (2k ids a layer), a fallback (two records a layer)."""
    parts: dict[str, Any] = {
        "iteration": [0, 0, 1, 1, 2, 2, 2, 2],
        "layer": [1, 2, 1, 2, 1, 2, 1, 2],
        "kind": [NORMAL] * 2 + [SPEC_ACCEPT] * 2 + [SPEC_FALLBACK] * 4,
        "offsets": [0, 2, 4, 8, 12, 14, 16, 18, 20],
        "experts": [7, 3, 0, 1, 3, 7, 7, 2, 1, 0, 0, 5, 4, 6, 1, 2, 6, 4, 2, 1],
        "n_experts": 8,
        "k": 2,
        "synthetic": False,
        "source": "by hand",
    }
    return parts | changed


def test_iterations_accepted_tokens_and_reads_are_counted_apart() -> None:
    trace = make_trace(**speculative())
    assert (trace.n_iterations, trace.accepted_tokens, trace.n_accesses, trace.n_records) == (3, 4, 20, 8)
    assert trace.kind_counts() == {"normal": 1, "spec_accept": 1, "spec_fallback": 1}
    assert trace.layers == (1, 2)
    assert trace.record_bounds().tolist() == [0, 2, 4, 8]
    assert trace.access_bounds().tolist() == [0, 4, 12, 20]


def test_passes_of_a_layer_split_accepts_and_keep_both_tries_of_a_fallback_in_issued_order() -> None:
    trace = make_trace(**speculative())
    assert trace.passes(1).tolist() == [[7, 3], [3, 7], [7, 2], [4, 6], [6, 4]]
    with pytest.raises(InputError, match="layer 3 is not in the trace"):
        trace.passes(3)


def test_records_come_back_as_they_were_given() -> None:
    records = list(make_trace(**speculative()).records())
    assert records[0] == Record(0, 1, "normal", (7, 3))
    assert records[2] == Record(1, 1, "spec_accept", (3, 7, 7, 2))
    assert records[-1] == Record(2, 2, "spec_fallback", (2, 1))


def test_arrays_cannot_be_changed() -> None:
    trace = make_trace(**speculative())
    with pytest.raises(ValueError, match="read-only"):
        trace.experts[0] = 1


def test_the_fingerprint_is_of_the_content_not_of_its_name() -> None:
    one = make_trace(**speculative())
    assert one.fingerprint == make_trace(**speculative(source="elsewhere")).fingerprint
    swapped = [3, 7, *speculative()["experts"][2:]]
    assert one.fingerprint != make_trace(**speculative(experts=swapped)).fingerprint


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"experts": [7, 3, 0, 9, *range(8), *range(8)]}, "names expert 9"),
        ({"experts": [7, 7, *speculative()["experts"][2:]]}, "pass 0 of the trace names an expert twice"),
        ({"experts": [-1, *speculative()["experts"][1:]]}, "expert column holds -1 to 7"),
        ({"experts": [0.5, *speculative()["experts"][1:]]}, "values of type float64"),
        ({"iteration": [0, 0, 1, 1, 3, 3, 3, 3]}, "not numbered 0, 1, 2"),
        ({"iteration": [0, 0, 1, 1, 2, 2, 1, 1]}, "not numbered 0, 1, 2"),
        ({"kind": [NORMAL] * 4 + [SPEC_FALLBACK] * 4}, r"record 2 \(normal\) names 4 experts"),
        ({"kind": [NORMAL] * 2 + [SPEC_ACCEPT] * 2 + [NORMAL] * 4}, r"iteration 2 routes layer 1 2 time\(s\)"),
        ({"kind": [NORMAL, SPEC_FALLBACK, *[SPEC_ACCEPT] * 2, *[SPEC_FALLBACK] * 4]}, "iteration 0 mixes record kinds"),
        ({"layer": [1, 2, 1, 2, 1, 1, 2, 1]}, r"iteration 2 routes layer 1 3 time\(s\)"),
        ({"layers": [1]}, "routes layer 2"),
        ({"offsets": [0, 2, 4, 8, 12, 14, 16, 18, 21]}, "offsets do not divide"),
        ({"layer": [1, 2, 1]}, "columns differ in length"),
        ({"k": 9}, "k = 9 of 8 experts"),
    ],
)
def test_a_broken_rule_is_refused_by_name(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_trace(**speculative(**changed))


@pytest.mark.parametrize(
    ("changed", "record"),
    [
        ({"experts": [*speculative()["experts"][:9], 8, *speculative()["experts"][10:]]}, 3),
        ({"experts": [*speculative()["experts"][:19], 2]}, 7),
        ({"kind": [NORMAL] * 4 + [SPEC_FALLBACK] * 4}, 2),
        ({"kind": [NORMAL] * 2 + [SPEC_ACCEPT] * 2 + [NORMAL] * 4}, 6),
        ({"kind": [NORMAL, SPEC_FALLBACK, *[SPEC_ACCEPT] * 2, *[SPEC_FALLBACK] * 4]}, 1),
        ({"layer": [1, 2, 1, 2, 1, 1, 2, 1]}, 7),
        ({"layer": [1, 2, 1, 2, 1, 1, 2, 3]}, 6),
        ({"layers": [1]}, 1),
        ({"layers": [1, 2, 3]}, 0),
    ],
)
def test_an_error_of_one_record_says_which(changed: dict[str, Any], record: int) -> None:
    with pytest.raises(RecordError) as caught:
        make_trace(**speculative(**changed))
    assert caught.value.record == record


def test_an_empty_trace_is_refused() -> None:
    nothing: Any = np.zeros(0, dtype=np.uint32)
    with pytest.raises(InputError, match="no record"):
        make_trace(**speculative(iteration=nothing, layer=nothing, kind=nothing, offsets=[0], experts=nothing))
