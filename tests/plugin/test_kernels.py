"""Which kernels a session measures on: the options, a marker's words, and what is left of impossible pairs."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from pytest_moetier import plugin
from pytest_moetier.cell import GuestAsked, KernelAsked
from pytest_moetier.settings import Options, read_options

Bench = Callable[..., pytest.RunResult]

HEAD = "import pytest\n\n"
RECLAIM = "workload='reclaim', default_capacity='4.4%', mechanism='cgroup'"
INI = ("-o", "moetier_kernel=6.1 7.3")


def marked(name: str, words: str) -> str:
    return f"@pytest.mark.moetier({words})\ndef test_{name}(moetier_cell):\n    pass\n\n\n"


def ids(result: pytest.RunResult, name: str = "mine") -> list[str]:
    """Return the ids of one test's cells, in order."""
    head = f"::test_{name}["
    return [line.partition(head)[2].rstrip("]") for line in result.outlines if head in line]


@pytest.fixture
def collected(bench: Bench) -> Callable[..., list[str]]:
    """Collect one test with a marker of these words, and return the ids of its cells."""

    def call(words: str, *options: str) -> list[str]:
        bench.write(HEAD + marked("mine", words))  # type: ignore[attr-defined]
        return ids(bench("--collect-only", "-q", *options))

    return call


def options(**given: object) -> Options:
    """Return what a session's options are where these are given."""
    defaults = {f"moetier_{name}": default for name, default, *_ in plugin._OPTIONS}  # noqa: SLF001
    config = SimpleNamespace(
        option=SimpleNamespace(**{f"moetier_{name}": value for name, value in given.items()}),
        getini={**defaults, "moetier_trace": [], "moetier_kernel": []}.__getitem__,
    )
    return read_options(config)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "label", "word"),
    [
        ("host", "host", "host"),
        ("6.12", "6.12", "6.12"),
        ("6.12.118+deb13-amd64", "6.12.118+deb13-amd64", "6.12.118+deb13-amd64"),
        ("7.3~rc1", "7.3_rc1", "7.3~rc1"),
        ("newest", "newest", "newest"),
        ("/no/such/bzImage", "bzImage", "/no/such/bzImage"),
        ("./vmlinuz-6.1.0+mine:./modules", "vmlinuz-6.1.0+mine", "./vmlinuz-6.1.0+mine:./modules"),
        ("mine=/no/such/bzImage:/no/modules", "mine", "/no/such/bzImage:/no/modules"),
        ("mine=bzImage", "mine", "bzImage"),
        ("old=6.1", "old", "6.1"),
        ("/odd=name/b z", "b_z", "/odd=name/b z"),
    ],
)
def test_a_kernel_is_a_version_or_a_file_and_has_a_label_that_ids_can_bear(text: str, label: str, word: str) -> None:
    assert options(kernel=[text]).kernels == (KernelAsked(label, word),)


def test_without_a_kernel_the_running_one_is_measured_and_one_named_twice_once() -> None:
    assert options().kernels == options(kernel=["host"]).kernels == (KernelAsked("host", "host"),)
    assert [one.label for one in options(kernel=["7.3", "host", "7.3"]).kernels] == ["7.3", "host"]


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("kernel", "", "-kernel '' is no kernel; expected host, a version such as 6.12, newest, or "),
        ("kernel", "bzImage", "-kernel 'bzImage' is no kernel; expected .* with a slash in PATH"),
        ("kernel", "6.12,7.3", "-kernel '6.12,7.3' is no kernel"),
        ("kernel", "mine=", "-kernel 'mine=' is no kernel"),
        ("kernel", "/boot/", "-kernel '/boot/' is no kernel"),
        ("kernel", "/boot/vmlinuz:", "-kernel '/boot/vmlinuz:' is no kernel"),
        ("kernel", "host=/boot/vmlinuz", "-kernel .* has the label 'host'; expected letters, .* and not host"),
        ("kernel", "a%=/boot/vmlinuz", "-kernel .* has the label 'a%'; expected letters"),
        ("guest_cpus", "0", "-guest-cpus is 0; expected 1 to 64"),
        ("guest_cpus", "65", "-guest-cpus is 65; expected 1 to 64"),
        ("guest_accel", "fast", "-guest-accel 'fast' is unknown; expected one of auto, kvm, tcg"),
        ("guest_memory", "much", "-guest-memory 'much' is not a size"),
        ("guest_pool", "4", "-guest-pool '4' is no pool; expected LAYERSxSIZE, such as 4x256KiB"),
        ("guest_pool", "4x", "-guest-pool '4x' is no pool"),
        ("guest_pool", "x64KiB", "-guest-pool 'x64KiB' is no pool"),
        ("guest_pool", "4x100", "-guest-pool '4x100': expert size 100 is 100 bytes; expected whole pages"),
        ("guest_pool", "93x64KiB", "-guest-pool '93x64KiB': layers 93 .*; expected at most its 92"),
    ],
)
def test_a_kernel_or_guest_that_cannot_be_is_refused(name: str, value: str, said: str) -> None:
    with pytest.raises(pytest.UsageError, match=rf"^pytest-moetier: --moetier{said}"):
        options(**{name: [value] if name == "kernel" else value})


def test_two_kernels_of_one_label_are_refused() -> None:
    said = "two kernels bzImage: /one/bzImage and /two/bzImage; .*next: --moetier-kernel LABEL=/two/bzImage"
    with pytest.raises(pytest.UsageError, match=said):
        options(kernel=["/one/bzImage", "/two/bzImage"])


def test_a_guest_is_what_the_user_chose_or_what_its_cell_needs() -> None:
    assert options().guest == GuestAsked(memory_bytes=0, cpus=2, accelerator="auto")
    assert options().guest_pool is None
    found = options(guest_memory="1.5GiB", guest_cpus="64", guest_accel="tcg", guest_pool="4x256KiB")
    assert found.guest == GuestAsked(memory_bytes=3 << 29, cpus=64, accelerator="tcg")
    assert found.guest_pool == (4, 256 << 10)
    assert options(guest_memory="0").guest.memory_bytes == 0


@pytest.mark.parametrize(
    ("given", "expected"),
    [((), [""]), (("--moetier-kernel=host", "--moetier-kernel=6.12"), ["", "-k6.12"]), (INI, ["-k6.1", "-k7.3"])],
)
def test_every_cell_is_measured_on_each_kernel_that_was_named(
    collected: Callable[..., list[str]], given: tuple[str, ...], expected: list[str]
) -> None:
    assert collected(RECLAIM, *given) == [f"cgroup-mglru_host{one}" for one in expected]


def test_a_kernel_that_cannot_be_ends_the_session_before_it_begins(bench: Bench) -> None:
    result = bench("--collect-only", "--moetier-kernel=bzImage")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--moetier-kernel 'bzImage' is no kernel*"])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("kernel='host'", [""]),
        ("kernel='option'", ["-k6.12", "-kmine"]),
        ("kernel=('host', 'option')", ["", "-k6.12", "-kmine"]),
        ("kernel='mine'", ["-kmine"]),
        ("kernel='7.3,6.12'", ["-k7.3", "-k6.12"]),
    ],
)
def test_a_marker_may_name_its_own_kernels(
    collected: Callable[..., list[str]], words: str, expected: list[str]
) -> None:
    found = collected(f"{RECLAIM}, {words}", "--moetier-kernel=6.12", "--moetier-kernel=mine=/no/such/file")
    assert found == [f"cgroup-mglru_host{one}" for one in expected]


def test_what_a_balloon_locks_varies_balloons_alone(collected: Callable[..., list[str]]) -> None:
    words = "workload='reclaim', capacity='4.4%', mechanism='balloon,cgroup,memboot', locked=(74, 81), mglru='both'"
    assert collected(words, "--moetier-kernel=6.12") == [
        "balloon74-mglru_on-k6.12",
        "balloon74-mglru_off-k6.12",
        "balloon81-mglru_on-k6.12",
        "balloon81-mglru_off-k6.12",
        "cgroup-mglru_on-k6.12",
        "cgroup-mglru_off-k6.12",
        "memboot-mglru_on-k6.12",
        "memboot-mglru_off-k6.12",
    ]


def test_the_axes_of_a_guest_give_their_cells_in_the_order_named(collected: Callable[..., list[str]]) -> None:
    words = f"{RECLAIM}, read_ahead=(0, 4096), filesystem='ext4,xfs'"
    expected = ["", "-xfs", "-ra4096", "-ra4096-xfs"]
    assert collected(words, "--moetier-kernel=6.12") == [f"cgroup-mglru_host{one}-k6.12" for one in expected]


BOTH = ("--moetier-kernel=host", "--moetier-kernel=6.12", "--moetier-kernel=7.3")
WRITES = "workload='small_box', capacity='5%', mechanism='cgroup', mode='page_cache,write_shared', read_limit='0,10MB'"
BOX = "C5pct-cgroup-mglru_host-small_box"


def test_what_a_guest_cannot_measure_stays_on_the_host(collected: Callable[..., list[str]]) -> None:
    assert collected(WRITES, *BOTH) == [
        BOX,
        f"{BOX}-k6.12",
        f"{BOX}-k7.3",
        f"{BOX}-10MBps",
        f"{BOX}-write_shared",
        f"{BOX}-write_shared-10MBps",
    ]


def test_what_the_host_cannot_measure_is_left_to_guests(collected: Callable[..., list[str]]) -> None:
    assert collected(f"{RECLAIM}, filesystem='xfs'", *BOTH) == [
        "cgroup-mglru_host-xfs-k6.12",
        "cgroup-mglru_host-xfs-k7.3",
    ]


def test_a_cell_that_no_asked_kernel_can_measure_stays_and_is_not_examined(collected: Callable[..., list[str]]) -> None:
    assert collected(WRITES, "--moetier-kernel=6.12") == [
        f"{BOX}{one}-k6.12" for one in ("", "-10MBps", "-write_shared", "-write_shared-10MBps")
    ]
    assert collected(f"{RECLAIM}, filesystem='xfs'") == ["cgroup-mglru_host-xfs"]


def test_cells_are_selected_by_k_and_by_the_marker_of_their_kernel(bench: Bench) -> None:
    words = "workload='reclaim', capacity='4.4%', mechanism='balloon', locked=(74, 81), read_ahead=(0, 128)"
    bench.write(HEAD + marked("mine", words))  # type: ignore[attr-defined]
    for option, count in (
        ("-k=balloon81-mglru_host-k6.12", 1),
        ("-k=k6.12 and ra128", 2),
        ("-m=cell(kernel='6.12')", 4),
        ("-m=cell(locked=81)", 4),
        ("-m=cell(read_ahead=128, filesystem='ext4')", 4),
    ):
        result = bench("--collect-only", "-q", "--moetier-kernel=6.12", "--moetier-kernel=7.3", option)
        assert len(ids(result)) == count, option


@pytest.mark.parametrize(
    ("options", "lane"),
    [
        ((), "lane host, kernel "),
        (("--moetier-kernel=6.12", "--moetier-kernel=7.3"), "lane guest 6.12, 7.3, host kernel "),
        (("--moetier-kernel=6.12", "--moetier-kernel=host"), "lane host and guest 6.12, host kernel "),
    ],
)
def test_the_header_names_the_lane(bench: Bench, options: tuple[str, ...], lane: str) -> None:
    result = bench("--moetier-pool=/nonexistent/pool", "--moetier-mechanism=cgroup", "-k=test_capacity[", *options)
    result.stdout.fnmatch_lines([f"moetier: *, {lane}*"])


def test_guests_cannot_be_measured_side_by_side_either(bench: Bench) -> None:
    bench.write(HEAD + marked("mine", RECLAIM))  # type: ignore[attr-defined]
    result = bench("-n=2", "--moetier-kernel=6.12")
    assert result.ret != 0
    assert any("measurements cannot share the host" in line for line in (*result.outlines, *result.errlines))
