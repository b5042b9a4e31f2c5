"""The kernel's account of its generations: rows of several groups, nodes and kernels, and text that ends early."""

from __future__ import annotations

from pathlib import Path

import pytest
from trees import lay_out

from pytest_moetier.host import generations, procfs
from pytest_moetier.host.generations import Generation, Generations, NodeGenerations

GROUP = "/moetier-9-cell"
KERNELS = ("6.1", "6.12", "7.3")

PLAIN = """\
memcg     1 /
 node     0
          0       3764          0           0 
          1       3764          0       10947 
          2       3764        511           4 
          3       3764         33           3 
memcg 28 /a b/moetier-9-cell
 node     0
          7       1392          5         120 
          8         40         12           7 
"""  # noqa: W291 - as the kernel writes it


def recorded(name: str, folder: Path, path: str = generations.PATH) -> Generations:
    """Return what the recorded text of a kernel says."""
    with procfs.rooted(lay_out(f"../kernels/{name}", folder)):
        found = generations.parse(procfs.read_text(path))
    assert found is not None
    return found


def of(text: str | None) -> Generations:
    found = generations.parse(text)
    assert found is not None
    return found


def test_rows_are_number_age_anonymous_and_file_pages_oldest_first() -> None:
    found = of(PLAIN)
    assert [group.path for group in found.groups] == ["/", "/a b/moetier-9-cell"]
    assert found.cut is False
    (node,) = found.groups[1].nodes
    assert node == NodeGenerations(0, (Generation(7, 1392, 5, 120), Generation(8, 40, 12, 7)))
    assert (node.min_seq, node.max_seq, node.min_file_seq) == (7, 8, 7)
    assert (node.anon_pages, node.file_pages) == ((5, 12), (120, 7))


def test_file_pages_are_counted_from_the_generation_they_are_reclaimed_from() -> None:
    # Anonymous pages hold on to generation 0, which file pages left: the first row says 0 of both.
    (node,) = of(PLAIN).groups[0].nodes
    assert (node.min_seq, node.min_file_seq, node.max_seq) == (0, 1, 3)
    assert of(PLAIN).file_pages_by_generation("/") == (10947, 4, 3)
    assert node.anon_pages == (0, 0, 511, 33)


def test_the_two_youngest_generations_are_never_passed_over_for_being_empty() -> None:
    text = "memcg 1 /\n node 0\n 4 9 0 0\n 5 9 0 0\n 6 9 0 0\n 7 9 0 30\n"
    (node,) = of(text).groups[0].nodes
    assert (node.min_file_seq, node.file_pages) == (6, (0, 30))


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_full_file_tells_the_same_pages_and_its_other_rows_are_no_generations(kernel: str, tmp_path: Path) -> None:
    plain = recorded(f"{kernel}/wall-exit", tmp_path / "plain")
    full = recorded(f"{kernel}/wall-exit", tmp_path / "full", f"{generations.PATH}_full")
    for name in ("/", GROUP):
        one, other = plain.of(name), full.of(name)
        assert one is not None
        assert other is not None
        (node,), (same,) = one.nodes, other.nodes
        assert [(row.seq, row.anon_pages, row.file_pages) for row in node.generations] == [
            (row.seq, row.anon_pages, row.file_pages) for row in same.generations
        ]
        assert len(node.generations) == 4


def test_a_row_of_statistics_that_looks_like_a_generation_is_none() -> None:
    text = PLAIN.replace(
        "          1       3764          0       10947 \n",
        "                                0           0           0           0 \n"
        "          1       3764          0       10947 \n"
        "                               0x          0x          0x          0x\n",
    )
    assert of(text) == of(PLAIN)


def test_nodes_are_told_apart_and_added_up_rank_by_rank(tmp_path: Path) -> None:
    found = recorded("6.12/two-nodes", tmp_path)
    group = found.of(GROUP)
    assert group is not None
    assert [node.node for node in group.nodes] == [0, 1]
    assert [node.file_pages for node in group.nodes] == [(6885, 1216, 0), (3199, 794, 0)]
    assert found.file_pages_by_generation(GROUP) == (6885 + 3199, 1216 + 794, 0)
    assert group.anon_pages == (0, 0, 2, 12)


def test_ranks_of_nodes_that_have_aged_differently_are_added_from_the_oldest_on() -> None:
    text = "memcg 1 /\n node 0\n 0 9 0 5\n 1 9 0 6\n node 1\n 7 9 0 10\n 8 9 0 20\n 9 9 0 30\n"
    assert of(text).file_pages_by_generation("/") == (15, 26, 30)


@pytest.mark.parametrize("kernel", KERNELS)
def test_wherever_the_text_ends_a_group_is_told_whole_or_not_at_all(kernel: str, tmp_path: Path) -> None:
    with procfs.rooted(lay_out(f"../kernels/{kernel}/wall-exit", tmp_path)):
        text = procfs.read_text(generations.PATH)
    whole = of(text)
    seen = set()
    for end in range(len(text)):
        found = generations.parse(text[:end])
        groups = () if found is None else found.groups
        seen.add(len(groups))
        if text[end - 1] != "\n":  # at the end of a line nothing shows that more rows were to come
            assert groups == whole.groups[: len(groups)]
            assert found is None or found.cut
    assert seen == {0, 1, 2}


def test_a_node_with_one_generation_was_cut_off() -> None:
    found = of(PLAIN[: PLAIN.index("          8 ")])
    assert (found.cut, [group.path for group in found.groups]) == (True, ["/"])
    assert found.file_pages_by_generation("/a b/moetier-9-cell") is None


@pytest.mark.parametrize("text", [None, "", "\n", "Permission denied\n", " node 0\n 1 2 3 4\n 2 2 3 4\n"])
def test_text_without_a_group_says_nothing(text: str | None) -> None:
    assert generations.parse(text) is None


def test_a_machine_without_the_file_has_no_generations(tmp_path: Path) -> None:
    with procfs.rooted(tmp_path):
        assert generations.read() is None
    with procfs.rooted(lay_out("../kernels/7.3/wall-exit", tmp_path / "7.3")):
        found = generations.read()
    assert found is not None
    assert found.file_pages_by_generation(GROUP) == (9220, 2818, 0, 0)
