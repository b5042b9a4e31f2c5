"""Debian's kernels for a virtual machine, by apt with a state of its own: nothing is installed.

The host's apt is left as it is. The lists and the downloads are in the cache folder; the packages are unpacked there,
each release in its folder. Taken are the cloud kernels of amd64: small, signed, with what a virtual machine needs.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

from pytest_moetier.errors import HarnessError, InputError, MoetierError, UnsupportedHostError
from pytest_moetier.host.kernels import (
    NEWEST,
    SOURCE_FILE,
    Kernel,
    fetched,
    find_kernel,
    image_in,
    matches,
    version_key,
)
from pytest_moetier.units import format_bytes

Tell = Callable[[str], None]

SUITES = (
    "bookworm",
    "bookworm-security",
    "bookworm-backports",
    "trixie",
    "trixie-security",
    "trixie-backports",
    "sid",
)
_MIRROR, _SECURITY_MIRROR = "http://deb.debian.org/debian", "http://deb.debian.org/debian-security"
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_OFFERED = r"^linux-image-[0-9]+\.[0-9]+\.[0-9]+[^ ]*-cloud-amd64$"
_PART = re.compile(r"(linux-(?:binary|modules|base)-\S+) \(= ([^)]+)\)")
_ACQUIRE = re.compile(r"^Acquire::(?:http|https|ftp|socks5h|Force|Check)[^\n]*;$", re.MULTILINE)
_FRESH_SECONDS = 3600
_LIMIT_SECONDS = 1800
_PATH_ADVICE = "a path of a vmlinuz or bzImage, with its modules: KERNEL:FOLDER"


@dataclass(frozen=True, slots=True)
class Offer:
    """A kernel that Debian offers.

    Attributes:
        release: ``uname -r`` of it.
        version: of the package.
        suite: of Debian, such as ``trixie-security``.
        parts: the packages to unpack, as ``name=version``.
        download_bytes: of all parts.
        unpacked_bytes: of all parts, as their records say.
        verified: whether the suite's signature was checked against Debian's keys.
    """

    release: str
    version: str
    suite: str
    parts: tuple[str, ...]
    download_bytes: int
    unpacked_bytes: int
    verified: bool


def available(cache: Path, tell: Tell) -> tuple[Offer, ...]:
    """Return the kernels that Debian offers now, oldest first; lists of less than an hour ago are used again.

    Raises:
        UnsupportedHostError: no apt here, no network, or no room for the lists.
    """
    with _locked(cache):
        return _Apt(cache, tell).offers()


def fetch(word: str, cache: Path, tell: Tell) -> Kernel:
    """Fetch the kernel that ``word`` names from Debian into the cache folder, unless it is there, and return it.

    Args:
        word: the first numbers (6.12: the newest offered of these), a whole release, or ``newest``.
        cache: the folder of fetched kernels.
        tell: called with each line of what is being done.

    Raises:
        InputError: Debian offers no such kernel: the nearest are named.
        UnsupportedHostError: no apt here, no network, or no room. Without network, a kernel of that name that was
            fetched before is returned.
        HarnessError: a download or a package is damaged.
    """
    if any(kernel.release == word for kernel in fetched(cache)):
        return find_kernel(word, cache)
    with _locked(cache):
        apt = _Apt(cache, tell)
        try:
            offer = _choose(word, apt.offers())
        except UnsupportedHostError as error:
            return _fetched_before(word, cache, tell, error)
        if _is_here(offer, cache):
            tell(f"{offer.release} is here: {cache / offer.release}")
        else:
            _unpack(offer, apt, cache, tell)
    return find_kernel(offer.release if word == NEWEST else word, cache)


def _fetched_before(word: str, cache: Path, tell: Tell, error: MoetierError) -> Kernel:
    try:
        kernel = find_kernel(word, cache)
    except MoetierError:
        raise error from None
    tell(f"not looked for newer ones: {error.seen}; {kernel.release} is here")
    return kernel


def _choose(word: str, offers: Sequence[Offer]) -> Offer:
    found = [offer for offer in offers if matches(word, offer.release)]
    if found:
        return found[-1]
    series = ".".join(word.split(".")[:2])
    same = [offer.release for offer in offers if matches(series, offer.release)][-5:]
    if not same:  # the newest of each series: 6.1, 6.12, ...
        same = list(dict.fromkeys(".".join(offer.release.split(".")[:2]) for offer in offers))
    raise InputError(
        f"Debian offers no kernel {word[:60]!r} now", f"a number such as 6.12; near it are {', '.join(same)}", _LIST
    )


_LIST = "moetier guest list --offered"


def _is_here(offer: Offer, cache: Path) -> bool:
    try:
        noted = json.loads((cache / offer.release / SOURCE_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(noted, dict) and noted.get("version") == offer.version


def _unpack(offer: Offer, apt: _Apt, cache: Path, tell: Tell) -> None:
    """Download and unpack a kernel beside where it is to be, and move it there when it is whole."""
    _check_room(offer, cache)
    size = format_bytes(offer.download_bytes)
    tell(f"fetching {offer.release} from Debian {offer.suite}: {len(offer.parts)} packages, {size}")
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=cache) as temporary:
        downloads, tree = Path(temporary, "downloads"), Path(temporary, "tree")
        downloads.mkdir()
        apt.download(offer.parts, downloads)
        for package in sorted(downloads.glob("*.deb")):
            _run(["dpkg-deb", "-x", str(package), str(tree)], "unpacking " + package.name)
        if image_in(tree, offer.release) is None:
            raise HarnessError(f"the packages of {offer.release} have no vmlinuz", "one in boot or lib/modules", _LIST)
        shutil.rmtree(tree / "usr" / "share", ignore_errors=True)
        (tree / SOURCE_FILE).write_text(json.dumps(_note(offer)), encoding="utf-8")
        target = cache / offer.release
        if target.exists():
            target.rename(Path(temporary, "before"))
        tree.rename(target)
    tell(f"unpacked: {target}")


def _note(offer: Offer) -> dict[str, object]:
    checked = "signature checked" if offer.verified else "signature NOT checked"
    day = datetime.now(UTC).date().isoformat()
    return {
        "source": f"Debian {offer.suite}, linux-image-{offer.release} {offer.version}, {checked}, fetched {day}",
        "version": offer.version,
        "packages": list(offer.parts),
    }


def _check_room(offer: Offer, cache: Path) -> None:
    free = shutil.disk_usage(cache).free
    needed = offer.download_bytes + offer.unpacked_bytes
    if free < needed:
        raise UnsupportedHostError(
            f"{cache} has {format_bytes(free)} free",
            f"{format_bytes(needed)} to fetch and unpack {offer.release}",
            f"make room, remove kernels in {cache}, or set XDG_CACHE_HOME to a folder on another device",
        )


@contextmanager
def _locked(cache: Path) -> Iterator[None]:
    """Hold the cache folder: one at a time fetches; another waits."""
    try:
        (cache / "apt").mkdir(parents=True, exist_ok=True)
        descriptor = os.open(cache / "apt" / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise UnsupportedHostError(
            f"{cache} cannot be written: {error.strerror}",
            "a folder for kernels that may be written to",
            "set XDG_CACHE_HOME to another folder",
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


class _Apt:
    """apt with lists, state, cache and sources of its own beneath the cache folder."""

    def __init__(self, cache: Path, tell: Tell) -> None:
        """Write its configuration.

        Raises:
            UnsupportedHostError: apt-get, apt-cache or dpkg-deb is missing.
        """
        missing = [name for name in ("apt-get", "apt-cache", "apt-config", "dpkg-deb") if shutil.which(name) is None]
        if missing:
            raise UnsupportedHostError(
                f"no {' and no '.join(missing)} here: not a Debian system",
                "apt, to fetch Debian's kernels",
                _PATH_ADVICE,
            )
        self._root = cache.absolute() / "apt"
        self._tell = tell
        self._stamp = self._root / "updated.json"
        for folder in ("lists/partial", "archives/partial"):
            (self._root / folder).mkdir(parents=True, exist_ok=True)
        (self._root / "status").touch()
        conf = self._root / "apt.conf"
        conf.touch(mode=0o600)  # the host's proxy may have a password in it
        conf.write_text(self._configuration(), encoding="utf-8")

    def _configuration(self) -> str:
        """Return our configuration: the host's own of how to download (a proxy), and none of its hooks or sources."""
        root = self._root
        lines = _ACQUIRE.findall(_run(["apt-config", "dump"], "reading apt's configuration"))
        lines += [
            'Dir::Etc::Parts "/dev/null";',
            'Dir::Etc::Main "/dev/null";',
            'Dir::Etc::SourceParts "/dev/null";',
            'Dir::Etc::Preferences "/dev/null";',
            'Dir::Etc::PreferencesParts "/dev/null";',
            f'Dir::Etc::SourceList "{root}/sources.list";',
            f'Dir::State "{root}";',
            f'Dir::State::Lists "{root}/lists";',
            f'Dir::State::Status "{root}/status";',
            f'Dir::Cache "{root}";',
            'APT::Architecture "amd64";',
            'APT::Architectures { "amd64"; };',
            'Acquire::Languages "none";',
            'Acquire::GzipIndexes "true";',
            'Dir::Cache::srcpkgcache "";',
            'Acquire::Retries "1";',
            'Acquire::http::Timeout "30";',
            'Acquire::https::Timeout "30";',
        ]
        if os.geteuid() == 0:  # root's own folder is closed to the user _apt: apt would warn of it
            lines.append('APT::Sandbox::User "root";')
        return "\n".join(lines) + "\n"

    def _call(self, *words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"APT_CONFIG": str(self._root / "apt.conf"), "LC_ALL": "C"}
        try:
            return subprocess.run(
                list(words),
                env=environment,
                cwd=cwd,
                capture_output=True,
                text=True,
                check=False,
                stdin=subprocess.DEVNULL,
                timeout=_LIMIT_SECONDS,
            )
        except subprocess.TimeoutExpired as error:
            raise UnsupportedHostError(
                f"{' '.join(words)[:80]} did not end within {_LIMIT_SECONDS} s", "a mirror that answers", _PATH_ADVICE
            ) from error

    def offers(self) -> tuple[Offer, ...]:
        """Return what Debian offers, oldest first; what was asked less than an hour ago is not asked again."""
        known = self._known()
        if known is None:
            unverified, old = self._update()
            known = self._listed(unverified)
            noted = {"seconds": 0.0 if old else time.time(), "offers": [asdict(offer) for offer in known]}
            self._stamp.write_text(json.dumps(noted), encoding="utf-8")
        return known

    def _known(self) -> tuple[Offer, ...] | None:
        try:
            noted = json.loads(self._stamp.read_text(encoding="utf-8"))
            if not 0 <= time.time() - noted["seconds"] < _FRESH_SECONDS:
                return None
            return tuple(Offer(**offer | {"parts": tuple(offer["parts"])}) for offer in noted["offers"])
        except (OSError, ValueError, KeyError, TypeError):  # none, or of another version of this program
            return None

    def _listed(self, unverified: frozenset[str]) -> tuple[Offer, ...]:
        """Return the kernels in the lists all of whose packages are there."""
        names = [line.split()[0] for line in self._lines("apt-cache", "search", "--names-only", _OFFERED)]
        if not names:
            raise UnsupportedHostError(
                "the lists of Debian's mirror have no cloud kernel", "a whole mirror", _PATH_ADVICE
            )
        places = self._places(names)
        records = self._records(names)
        records |= self._records([name for record in records.values() for name, _ in _PART.findall(record["Depends"])])
        found = []
        for name, (version, suite) in places.items():
            parts = _with_parts((name, version), records)
            if parts is not None:
                packages = tuple(f"{part}={of}" for part, of in parts)
                size = sum(int(records[part].get("Size", 0)) for part in parts)
                unpacked = sum(int(records[part].get("Installed-Size", 0)) << 10 for part in parts)
                release = name.removeprefix("linux-image-")
                found.append(Offer(release, version, suite, packages, size, unpacked, suite not in unverified))
        return tuple(sorted(found, key=lambda offer: version_key(offer.release)))

    def download(self, parts: Sequence[str], folder: Path) -> None:
        """Download packages into ``folder``; apt checks each against the sum in its signed list.

        Raises:
            HarnessError: one could not be had whole.
        """
        done = self._call("apt-get", "-q", "download", *parts, cwd=folder)
        if done.returncode or len(list(folder.glob("*.deb"))) != len(parts):
            self._stamp.unlink(missing_ok=True)  # the lists may be of before a new version: the next call asks again
            raise HarnessError(
                f"the download failed: {_why(done.stderr)}", "whole packages", "run the same command again"
            )

    def _lines(self, *words: str) -> list[str]:
        done = self._call(*words)
        if done.returncode:
            raise HarnessError(f"{' '.join(words)[:60]}: {_why(done.stderr)}", "apt to read its own lists")
        return done.stdout.splitlines()

    def _places(self, names: Sequence[str]) -> dict[str, tuple[str, str]]:
        """Return the newest version of each package and the suite that has it."""
        places: dict[str, tuple[str, str]] = {}
        for line in self._lines("apt-cache", "madison", *names):  # NAME | VERSION | URI SUITE/main amd64 Packages
            columns = [column.strip() for column in line.split("|")]
            if len(columns) == 3 and columns[2].endswith("Packages"):
                places.setdefault(columns[0], (columns[1], columns[2].split()[1].partition("/")[0]))
        return places

    def _records(self, names: Sequence[str]) -> dict[tuple[str, str], dict[str, str]]:
        """Return the records of packages by name and version."""
        records = {}
        text = "\n".join(self._lines("apt-cache", "show", *names)) if names else ""
        for block in text.split("\n\n"):
            rows = [line.partition(": ") for line in block.splitlines() if not line.startswith(" ")]
            record = {"Depends": ""} | {key: value for key, _, value in rows}
            if "Package" in record and "Version" in record:
                records[record["Package"], record["Version"]] = record
        return records

    def _update(self) -> tuple[frozenset[str], bool]:
        """Bring the lists up to date; return the suites whose signature is unchecked, and whether a list is old.

        Raises:
            UnsupportedHostError: no list can be had.
        """
        self._tell("asking Debian's mirror which kernels there are")
        unverified = frozenset() if _KEYRING.is_file() else frozenset(SUITES)
        messages = self._get_lists(unverified)
        lacking = frozenset(suite for suite in self._missing() if _lacks_key(suite, messages))
        if lacking:
            unverified |= lacking
            messages = self._get_lists(unverified)
        missing = self._missing()
        if len(missing) == len(SUITES):
            raise UnsupportedHostError(
                f"no list of Debian's kernels: {_why(messages)}", "a mirror that answers", _PATH_ADVICE
            )
        for suite in missing:
            self._tell(f"without {suite}: {_why(_of_suite(suite, messages))}")
        old = [suite for suite in SUITES if suite not in missing and "Failed to fetch" in _of_suite(suite, messages)]
        if old:
            self._tell(f"with an older list of {', '.join(old)}: {_why(_of_suite(old[0], messages))}")
        if unverified:
            self._tell(f"signatures NOT checked of {', '.join(sorted(unverified))}: {_KEYRING} lacks their keys")
        return unverified, bool(old)

    def _get_lists(self, unverified: frozenset[str]) -> str:
        """Download the lists and return apt's messages."""
        mirror, security = host_mirrors(Path("/etc/apt"))
        lines = [
            f"deb [{'trusted=yes' if suite in unverified else f'signed-by={_KEYRING}'}]"
            f" {security if suite.endswith('-security') else mirror} {suite} main"
            for suite in SUITES
        ]
        (self._root / "sources.list").write_text("\n".join(lines) + "\n", encoding="utf-8")
        return self._call("apt-get", "-q", "update").stderr

    def _missing(self) -> list[str]:
        """Return the suites that there is no list of."""
        words = ("apt-get", "indextargets", "--format", "$(RELEASE) $(FILENAME)", "Created-By: Packages")
        rows = [line.split(" ", 1) for line in self._lines(*words)]
        there = {row[0] for row in rows if len(row) == 2 and Path(row[1]).exists()}
        return [suite for suite in SUITES if suite not in there]


def _with_parts(
    image: tuple[str, str], records: Mapping[tuple[str, str], Mapping[str, str]]
) -> list[tuple[str, str]] | None:
    """Return an image's package and those that it is split into since Linux 6.19; None where the lists lack one."""
    if image not in records:
        return None
    parts = [image, *_PART.findall(records[image]["Depends"])]
    return parts if all(part in records for part in parts) else None


def _of_suite(suite: str, messages: str) -> str:
    """Return the lines of apt's messages that name a suite."""
    return "\n".join(line for line in messages.splitlines() if f" {suite} " in line or f"/{suite}/" in line)


def _lacks_key(suite: str, messages: str) -> bool:
    return "NO_PUBKEY" in _of_suite(suite, messages)


def _why(messages: str) -> str:
    """Return the first error of apt's messages, or the first warning."""
    lines = [line.strip() for line in messages.splitlines()]
    for mark in ("E: ", "W: "):
        found = [line.removeprefix(mark) for line in lines if line.startswith(mark)]
        if found:
            return found[0][:300]
    return " ".join(lines)[:300] or "no message"


def _run(words: Sequence[str], what: str) -> str:
    done = subprocess.run(list(words), capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise HarnessError(f"{what}: {' '.join(done.stderr.split())[:300]}", f"{words[0]} to succeed")
    return done.stdout


def host_mirrors(folder: Path) -> tuple[str, str]:
    """Return the mirror of Debian that a host takes its packages from, and that of its security updates.

    Args:
        folder: its configuration, /etc/apt. Where this names no mirror of Debian, it is deb.debian.org.
    """
    mirror, security = "", ""
    for uri, suites, words in (*_one_line_sources(folder), *_deb822_sources(folder)):
        parts = urlsplit(uri)
        if parts.scheme not in {"http", "https", "file"} or "main" not in words:
            continue
        ours = (parts.hostname or "").endswith("debian.org") or "debian-archive-keyring" in words
        if any(suite.endswith("-security") for suite in suites):
            security = security or (uri if ours or parts.path.endswith("/debian-security") else "")
        elif parts.path.endswith("/debian") and (ours or any(suite.endswith("-updates") for suite in suites)):
            mirror = mirror or uri
    return mirror or _MIRROR, security or _SECURITY_MIRROR


_Source = tuple[str, list[str], str]  # where, suites, and all the words of the entry


def _one_line_sources(folder: Path) -> Iterator[_Source]:
    for path in (folder / "sources.list", *sorted(folder.glob("sources.list.d/*.list"))):
        for line in _text(path).splitlines():
            match = re.match(r"deb\s+(\[[^]]*\]\s+)?(\S+)\s+(\S+)\s", line)
            if match:
                yield match[2].rstrip("/"), [match[3]], line


def _deb822_sources(folder: Path) -> Iterator[_Source]:
    for path in sorted(folder.glob("sources.list.d/*.sources")):
        for block in re.split(r"\n\s*\n", _text(path)):
            fields = dict(re.findall(r"^([\w-]+):\s*(.*)$", block, re.MULTILINE))
            if fields.get("Enabled", "yes").lower() != "no" and "deb" in fields.get("Types", "").split():
                for uri in fields.get("URIs", "").split():
                    yield uri.rstrip("/"), fields.get("Suites", "").split(), block


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
