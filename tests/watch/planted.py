"""A planted v2 host in a folder, whose counters a test moves."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

MIB = 1 << 20
GROUP = "/sys/fs/cgroup/reader"
DEVICE_STAT = "/sys/devices/sda/stat"
PID = 77


@dataclass
class Planted:
    """A v2 host in a folder, whose counters are what a test says; ``None`` takes a file away.

    Attributes:
        root: the folder.
        scan: pages that kswapd scanned; ``steal`` that it took. Of the group: ``group_scan`` and ``group_steal``.
        sectors: that the device read.
        rchar: bytes that the reader's read calls gave it.
    """

    root: Path
    scan: int = 0
    steal: int = 0
    group_scan: int = 0
    group_steal: int = 0
    sectors: int = 0
    rchar: int = 0
    stalled_us: int = 0
    file_bytes: int = 64 * MIB
    limit: str = "max"
    locked_kb: int = 81
    gone: set[str] = field(default_factory=set)

    def lay_out(self) -> None:
        """Write the files as they are now."""
        mounts = "36 30 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
        memory = f"MemTotal: 100 kB\nMemAvailable: 10240 kB\nMlocked: {self.locked_kb} kB\n"
        rows = {
            "kswapd": (self.scan, self.steal),
            "direct": (0, 0),
        }
        vmstat = "".join(f"pgscan_{who} {scan}\npgsteal_{who} {steal}\n" for who, (scan, steal) in rows.items())
        group = f"file {self.file_bytes}\nanon 0\npgscan {self.group_scan}\npgsteal {self.group_steal}\n"
        texts = {
            "/proc/self/mountinfo": mounts,
            "/proc/self/cgroup": "0::/\n",
            "/proc/meminfo": memory,
            "/proc/vmstat": vmstat,
            "/proc/pressure/memory": f"some avg10=0.00 total={self.stalled_us}\nfull avg10=0.00 total=0\n",
            f"/proc/{PID}/io": f"rchar: {self.rchar}\nread_bytes: {self.sectors * 512}\n",
            f"/proc/{PID}/status": f"Name:\treader\nVmLck:\t{self.locked_kb} kB\n",
            f"/proc/{PID}/stat": f"{PID} (reader) S {' '.join(['1'] * 40)}\n",
            f"/proc/{PID}/cmdline": "reader\0--mlock\0",
            DEVICE_STAT: f"{self.sectors // 8} 0 {self.sectors} 0 0 0 0 0 0 0 0\n",
            "/sys/devices/sda/queue/iostats": "1\n",
            "/sys/class/block/sda/dev": "8:0\n",
            "/sys/fs/cgroup/cgroup.controllers": "memory\n",
            "/sys/fs/cgroup/cgroup.subtree_control": "memory\n",
            "/sys/fs/cgroup/cgroup.procs": "",
            "/sys/fs/cgroup/memory.stat": "file 0\n",
            f"{GROUP}/memory.stat": group,
            f"{GROUP}/memory.current": f"{self.file_bytes}\n",
            f"{GROUP}/memory.max": f"{self.limit}\n",
            f"{GROUP}/memory.events": "max 0\noom_kill 0\n",
            f"{GROUP}/cgroup.procs": f"{PID}\n",
        }
        for name, text in texts.items():
            path = self.root / name.lstrip("/")
            if any(name.startswith(one) for one in self.gone):
                path.unlink(missing_ok=True)
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        link = self.root / "sys/dev/block/8:0"
        if not link.is_symlink():
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to("../../devices/sda")
        for one in self.gone:  # a control group that is gone has no folder either
            folder = self.root / one.lstrip("/")
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()

    def move(self, **by: int) -> None:
        """Advance counters by so much, and write the files."""
        for name, value in by.items():
            setattr(self, name, getattr(self, name) + value)
        self.lay_out()
