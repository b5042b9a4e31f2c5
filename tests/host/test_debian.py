"""Debian's kernels, fetched by apt: from a small archive that is made here, and from the real one where it answers."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping
from email.utils import formatdate
from pathlib import Path

import pytest
from images import bzimage, real_kernel

from pytest_moetier.errors import HarnessError, InputError, UnsupportedHostError
from pytest_moetier.host import debian
from pytest_moetier.host.kernels import check, fetched, has_mglru

needs_apt = pytest.mark.skipif(
    any(shutil.which(name) is None for name in ("apt-get", "apt-cache", "dpkg-deb")), reason="no apt and dpkg-deb here"
)


class Archive:
    """An archive of Debian with one suite, sid, beneath a folder."""

    def __init__(self, root: Path) -> None:  # noqa: D107
        self.root = root
        self.suite = root / "debian" / "dists" / "sid"
        self.pool = root / "debian" / "pool"
        self.pool.mkdir(parents=True)
        self._records: list[str] = []

    def add(self, name: str, version: str, files: Mapping[str, bytes], depends: str = "") -> Path:
        """Add a package and return its file."""
        tree = self.root / "build" / f"{name}-{version}"
        (tree / "DEBIAN").mkdir(parents=True)
        control = f"Package: {name}\nVersion: {version}\nArchitecture: amd64\nMaintainer: x <x@x>\n"
        control += f"Depends: {depends}\n" if depends else ""
        control += "Installed-Size: 20\nDescription: a kernel\n"
        (tree / "DEBIAN" / "control").write_text(control)
        for path, content in files.items():
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            (tree / path).write_bytes(content)
        package = self.pool / f"{name}_{version}_amd64.deb"
        subprocess.run(["dpkg-deb", "-Znone", "--build", str(tree), str(package)], check=True, capture_output=True)
        digest = hashlib.sha256(package.read_bytes()).hexdigest()
        record = f"{control}Filename: pool/{package.name}\nSize: {package.stat().st_size}\nSHA256: {digest}\n"
        self._records.append(record)
        return package

    def kernel(self, release: str, version: str = "1") -> Path:
        """Add a kernel in one package, as up to 6.18."""
        return self.add(f"linux-image-{release}", version, {f"boot/vmlinuz-{release}": bzimage(release)})

    def split_kernel(self, release: str, *, whole: bool = True) -> None:
        """Add a kernel in four packages, as from 6.19; not whole: one of them is not in the archive."""
        folder = f"usr/lib/modules/{release}"
        parts = {
            "base": {
                f"{folder}/config": b"CONFIG_LRU_GEN=y\n",
                f"{folder}/modules.builtin": b"kernel/fs/ext4/ext4.ko\n",
            },
            "binary": {f"{folder}/vmlinuz": bzimage(release)},
            "modules": {f"{folder}/kernel/a.ko": b"", "usr/share/doc/x": b"y"},
        }
        for part, files in parts.items():
            if whole or part != "modules":
                self.add(f"linux-{part}-{release}", "7~bpo+1", files)
        depends = ", ".join(f"linux-{part}-{release} (= 7~bpo+1)" for part in parts)
        self.add(f"linux-image-{release}", "7~bpo+1", {}, f"kmod, dracut | initramfs-tools, {depends}")

    def publish(self, *, sign: Callable[[Path], None] | None = None) -> None:
        """Write the lists of what was added."""
        lists = self.suite / "main" / "binary-amd64"
        lists.mkdir(parents=True, exist_ok=True)
        packages = "\n".join(self._records).encode()
        (lists / "Packages").write_bytes(packages)
        digest = hashlib.sha256(packages).hexdigest()
        release = (
            f"Origin: Debian\nSuite: sid\nCodename: sid\nDate: {formatdate(usegmt=True)}\nArchitectures: amd64\n"
            f"Components: main\nSHA256:\n {digest} {len(packages)} main/binary-amd64/Packages\n"
        )
        (self.suite / "Release").write_text(release)
        if sign:
            sign(self.suite)


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Archive:
    """Return an unsigned archive, which is this host's mirror for the test."""
    made = Archive(tmp_path / "archive")
    where = f"file:{made.root}/debian"
    monkeypatch.setattr(debian, "host_mirrors", lambda _: (where, f"{where}-security"))
    monkeypatch.setattr(debian, "_KEYRING", tmp_path / "no-keyring.gpg")
    return made


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def told() -> list[str]:
    return []


@needs_apt
def test_the_newest_of_a_series_is_fetched_unpacked_and_found(archive: Archive, cache: Path, told: list[str]) -> None:
    for release in ("6.12.9+deb13-cloud-amd64", "6.12.10+deb13-cloud-amd64", "6.1.0-57-cloud-amd64"):
        archive.kernel(release)
    archive.publish()
    kernel = debian.fetch("6.12", cache, told.append)
    assert (kernel.label, kernel.release) == ("6.12", "6.12.10+deb13-cloud-amd64")
    assert kernel.image == cache / kernel.release / "boot" / f"vmlinuz-{kernel.release}"
    assert kernel.source.startswith(
        "Debian sid, linux-image-6.12.10+deb13-cloud-amd64 1, signature NOT checked, fetched "
    )
    assert [line for line in told if "NOT checked" in line]
    assert [line.partition(":")[0] for line in told if "without" in line] == [
        f"without {suite}" for suite in debian.SUITES if suite != "sid"
    ]
    assert [one.release for one in fetched(cache)] == [kernel.release]
    assert [path.name for path in cache.iterdir() if path.name.startswith(".")] == []  # nothing half made is left


@needs_apt
def test_a_kernel_that_is_here_is_not_fetched_again(archive: Archive, cache: Path, told: list[str]) -> None:
    package = archive.kernel("6.12.9-cloud-amd64")
    archive.publish()
    debian.fetch("6.12", cache, told.append)
    package.unlink()
    assert debian.fetch("6.12", cache, told.append).release == "6.12.9-cloud-amd64"
    assert told[-1] == f"6.12.9-cloud-amd64 is here: {cache / '6.12.9-cloud-amd64'}"
    assert len([line for line in told if line.startswith("asking")]) == 1  # nor are the lists, within the hour


@needs_apt
def test_a_new_version_of_a_release_takes_the_place_of_the_old_one(archive: Archive, cache: Path) -> None:
    archive.kernel("6.12.9-cloud-amd64", "1")
    archive.publish()
    debian.fetch("6.12", cache, print)
    archive.kernel("6.12.9-cloud-amd64", "2")
    archive.publish()
    (cache / "apt" / "updated.json").unlink()
    (cache / "6.12.9-cloud-amd64" / "old").touch()
    assert " 2, signature" in debian.fetch("6.12", cache, print).source
    assert not (cache / "6.12.9-cloud-amd64" / "old").exists()


@needs_apt
def test_a_kernel_in_several_packages_is_put_together(archive: Archive, cache: Path) -> None:
    archive.split_kernel("7.3.4+deb13-cloud-amd64")
    archive.split_kernel("7.4.0+deb13-cloud-amd64", whole=False)
    archive.publish()
    (offer,) = debian.available(cache, print)  # what cannot be had whole is not offered
    assert [part.partition("=")[0] for part in offer.parts] == [
        f"linux-{part}-7.3.4+deb13-cloud-amd64" for part in ("image", "base", "binary", "modules")
    ]
    kernel = debian.fetch("newest", cache, print)
    assert (kernel.release, kernel.config) == ("7.3.4+deb13-cloud-amd64", {"LRU_GEN": "y"})
    assert kernel.modules == cache / kernel.release / "usr" / "lib" / "modules" / kernel.release
    assert not (cache / kernel.release / "usr" / "share").exists()


@needs_apt
def test_only_signed_cloud_kernels_are_offered(archive: Archive, cache: Path) -> None:
    for release in ("6.12.9-cloud-amd64", "6.12.9-cloud-amd64-dbg", "6.12.9-cloud-amd64-unsigned", "6.12.9-rt-amd64"):
        archive.kernel(release)
    archive.add("linux-image-6.12-cloud-amd64", "1", {})  # of no kernel of its own
    archive.publish()
    assert [offer.release for offer in debian.available(cache, print)] == ["6.12.9-cloud-amd64"]


@needs_apt
def test_a_kernel_that_is_not_offered_names_the_nearest(archive: Archive, cache: Path) -> None:
    for release in ("6.1.0-57-cloud-amd64", "6.12.9-cloud-amd64", "6.12.10-cloud-amd64"):
        archive.kernel(release)
    archive.publish()
    with pytest.raises(
        InputError, match=r"no kernel '6\.12\.99' .*near it are 6\.12\.9-cloud.*, 6\.12\.10-cloud-amd64;"
    ):
        debian.fetch("6.12.99", cache, print)
    with pytest.raises(InputError, match=r"no kernel '5\.10' .*near it are 6\.1, 6\.12; next: moetier guest list"):
        debian.fetch("5.10", cache, print)


@needs_apt
@pytest.mark.parametrize("how", ["cut", "changed", "gone"])
def test_a_damaged_download_leaves_nothing_behind(archive: Archive, cache: Path, how: str) -> None:
    package = archive.kernel("6.12.9-cloud-amd64")
    archive.publish()
    content = package.read_bytes()
    if how == "gone":
        package.unlink()
    else:
        package.write_bytes(content[:-100] if how == "cut" else content[:-1] + b"x")
    with pytest.raises(HarnessError, match="the download failed: "):
        debian.fetch("6.12", cache, print)
    assert [path.name for path in cache.iterdir()] == ["apt"]
    package.write_bytes(content)
    assert debian.fetch("6.12", cache, print).release == "6.12.9-cloud-amd64"


@needs_apt
def test_packages_without_a_kernel_are_refused(archive: Archive, cache: Path) -> None:
    archive.add("linux-image-6.12.9-cloud-amd64", "1", {"usr/share/doc/x": b"y"})
    archive.publish()
    with pytest.raises(HarnessError, match=r"the packages of 6\.12\.9-cloud-amd64 have no vmlinuz"):
        debian.fetch("6.12", cache, print)
    assert [path.name for path in cache.iterdir()] == ["apt"]


@needs_apt
def test_without_a_mirror_one_message_says_so_and_a_fetched_kernel_still_serves(
    archive: Archive, cache: Path, told: list[str]
) -> None:
    with pytest.raises(UnsupportedHostError, match=r"no list of Debian's kernels: .*next: a path of a vmlinuz"):
        debian.fetch("6.12", cache, told.append)
    archive.kernel("6.12.9-cloud-amd64")
    archive.publish()
    debian.fetch("6.12", cache, told.append)
    shutil.rmtree(archive.root)
    shutil.rmtree(cache / "apt")
    assert debian.fetch("6.12", cache, told.append).release == "6.12.9-cloud-amd64"
    assert told[-1].startswith("not looked for newer ones: no list of Debian's kernels: ")
    assert told[-1].endswith("6.12.9-cloud-amd64 is here")
    with pytest.raises(UnsupportedHostError, match="no list of Debian's kernels"):
        debian.fetch("6.1", cache, told.append)


@needs_apt
def test_too_little_room_is_said_before_the_download(
    archive: Archive, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive.kernel("6.12.9-cloud-amd64")
    archive.publish()
    usage = namedtuple("usage", "total used free")  # noqa: PYI024  (as shutil's)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(1 << 30, (1 << 30) - 4096, 4096))
    with pytest.raises(UnsupportedHostError, match=r"has 4\.1 KB free; expected .* to fetch and unpack 6\.12\.9"):
        debian.fetch("6.12", cache, print)


def test_without_apt_the_message_names_what_works_instead(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnsupportedHostError, match=r"no apt-get and no apt-cache.*not a Debian system.*KERNEL:FOLDER"):
        debian.fetch("6.12", cache, print)


def test_a_cache_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UnsupportedHostError, match="cannot be written: Not a directory"):
        debian.fetch("6.12", tmp_path / "file" / "kernels", print)


@pytest.fixture
def key(tmp_path: Path) -> Iterator[tuple[Callable[[Path], None], Path]]:
    """Return a call that signs a suite with a key made for the test, and the keyring that has this key."""
    if shutil.which("gpg") is None or shutil.which("gpgconf") is None:
        pytest.skip("no gpg here to sign with")
    home = tmp_path / "gpg"
    home.mkdir(mode=0o700)
    environment = os.environ | {"GNUPGHOME": str(home)}
    words = ["gpg", "--batch", "--quiet", "--passphrase", "", "--pinentry-mode", "loopback"]

    def gpg(*more: str) -> None:
        subprocess.run([*words, *more], env=environment, check=True, capture_output=True)

    def sign(suite: Path) -> None:
        gpg("--yes", "--clear-sign", "-o", str(suite / "InRelease"), str(suite / "Release"))

    gpg("--quick-generate-key", "test <test@test>", "ed25519", "sign", "never")
    gpg("--export", "-o", str(tmp_path / "keyring.gpg"))
    yield sign, tmp_path / "keyring.gpg"
    subprocess.run(["gpgconf", "--kill", "gpg-agent"], env=environment, check=False, capture_output=True)


@needs_apt
def test_a_signature_is_checked_where_its_key_is_known(
    archive: Archive, cache: Path, key: tuple[Callable[[Path], None], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    sign, keyring = key
    archive.kernel("6.12.9-cloud-amd64")
    archive.publish(sign=sign)
    monkeypatch.setattr(debian, "_KEYRING", keyring)
    assert ", signature checked, " in debian.fetch("6.12", cache, print).source


@needs_apt
def test_a_signature_whose_key_is_unknown_is_said_to_be_unchecked(
    archive: Archive,
    cache: Path,
    key: tuple[Callable[[Path], None], Path],
    monkeypatch: pytest.MonkeyPatch,
    told: list[str],
) -> None:
    sign, keyring = key
    archive.kernel("6.12.9-cloud-amd64")
    archive.publish(sign=sign)
    keyring.write_bytes(b"")  # a keyring without that key
    monkeypatch.setattr(debian, "_KEYRING", keyring)
    assert ", signature NOT checked, " in debian.fetch("6.12", cache, told.append).source
    assert [line for line in told if line == f"signatures NOT checked of sid: {keyring} lacks their keys"]


@needs_apt
def test_a_list_that_is_not_what_was_signed_is_never_used(
    archive: Archive, cache: Path, key: tuple[Callable[[Path], None], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    sign, keyring = key
    archive.kernel("6.12.9-cloud-amd64")
    archive.publish(sign=sign)
    signed = archive.suite / "InRelease"
    signed.write_text(signed.read_text().replace("Origin: Debian", "Origin: Nobody"))
    (archive.suite / "Release").unlink()
    monkeypatch.setattr(debian, "_KEYRING", keyring)
    with pytest.raises(UnsupportedHostError, match="no list of Debian's kernels"):
        debian.fetch("6.12", cache, print)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, ("http://deb.debian.org/debian", "http://deb.debian.org/debian-security")),
        (
            {"sources.list": "deb [arch=amd64] https://mirror.example/debian/ trixie-updates main\n"},
            ("https://mirror.example/debian", "http://deb.debian.org/debian-security"),
        ),
        (
            {
                "sources.list.d/debian.sources": "Types: deb\nURIs: http://near.example/debian\nSuites: trixie\n"
                "Components: main\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n\n"
                "Types: deb\nURIs: http://near.example/debian-security/\nSuites: trixie-security\nComponents: main\n"
            },
            ("http://near.example/debian", "http://near.example/debian-security"),
        ),
        (  # what is for Debian, but is not Debian
            {"sources.list.d/other.list": "deb https://packages.example/linux/debian trixie main\n"},
            ("http://deb.debian.org/debian", "http://deb.debian.org/debian-security"),
        ),
        (
            {
                "sources.list.d/off.sources": "Enabled: no\nTypes: deb\nURIs: http://ftp.de.debian.org/debian\n"
                "Suites: sid\nComponents: main\n",
                "sources.list": "# deb http://ftp.fr.debian.org/debian sid main\ndeb cdrom:[x]/ sid main\n",
            },
            ("http://deb.debian.org/debian", "http://deb.debian.org/debian-security"),
        ),
    ],
    ids=["none", "one-line", "deb822", "another-vendor", "disabled"],
)
def test_the_hosts_own_mirror_is_asked(tmp_path: Path, files: dict[str, str], expected: tuple[str, str]) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert debian.host_mirrors(tmp_path) == expected


@needs_apt
def test_the_hosts_own_apt_is_left_alone_but_for_its_proxy(
    archive: Archive, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive.kernel("6.12.9-cloud-amd64")
    archive.publish()
    ran = tmp_path / "ran"
    (tmp_path / "host.conf").write_text(
        f'APT::Update::Pre-Invoke {{ "touch {ran}"; }};\nAcquire::http::Proxy "http://localhost:1";\n'
    )
    monkeypatch.setenv("APT_CONFIG", str(tmp_path / "host.conf"))
    assert debian.fetch("6.12", cache, print).release == "6.12.9-cloud-amd64"
    assert not ran.exists()
    conf = cache / "apt" / "apt.conf"
    assert 'Acquire::http::Proxy "http://localhost:1";' in conf.read_text()
    assert conf.stat().st_mode & 0o777 == 0o600  # a proxy may have a password


@pytest.mark.slow
def test_a_real_kernel_of_debian_has_what_cells_need(tmp_path_factory: pytest.TempPathFactory) -> None:
    kernel = real_kernel(tmp_path_factory)
    needs = {need.name: need.state for need in check(kernel)}
    assert {name for name, state in needs.items() if state in {"no", "unknown"}} == set()
    assert has_mglru(kernel) is True
    assert kernel.release.startswith("6.12.")
