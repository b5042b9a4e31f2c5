"""The multi-generational LRU's switch: read, set, verify, restore (paper section 5: the reclaim axis).

Probed by its file (built since Linux 6.1, in /sys/kernel/mm/lru_gen). ``off`` holds by itself on a kernel without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from pytest_moetier.errors import HarnessError, InputError, UnsupportedHostError
from pytest_moetier.host import procfs
from pytest_moetier.host.machine import IN_A_GUEST
from pytest_moetier.host.restore import Journal

ENABLED = "/sys/kernel/mm/lru_gen/enabled"
ON, OFF, ABSENT = "on", "off", "absent"


def current() -> str:
    """Return ``on`` or ``off`` (bit 0 of the switch), or ``absent`` on a kernel without it."""
    text = procfs.try_text(ENABLED)
    if text is None:
        return ABSENT
    return ON if int(text, 0) & 1 else OFF


@dataclass(frozen=True, slots=True)
class MglruSetting:
    """What was wanted and what was seen.

    Attributes:
        wanted: ``host`` (leave alone), ``on`` or ``off``.
        at_entry: ``on``, ``off`` or ``absent`` once set.
        at_exit: the same at the end, None until :meth:`verified`.
    """

    wanted: str
    at_entry: str
    at_exit: str | None = None

    @property
    def as_wanted(self) -> bool:
        """Whether both ends are as wanted; ``host`` wants only that nothing changed in between."""
        if self.wanted == ON:
            return self.at_entry == self.at_exit == ON
        if self.wanted == OFF:
            return self.at_entry == self.at_exit and self.at_entry in {OFF, ABSENT}
        return self.at_entry == self.at_exit

    def verified(self) -> MglruSetting:
        """Return the setting with what is seen now as its end."""
        return replace(self, at_exit=current())


def need(wanted: str) -> None:
    """Refuse ``on`` where this kernel has no such thing.

    Raises:
        UnsupportedHostError: it is built without it.
    """
    if wanted == ON and current() == ABSENT:
        raise UnsupportedHostError(
            f"MGLRU cannot be switched on: {ENABLED} is absent, this kernel is built without it",
            "a kernel with CONFIG_LRU_GEN",
            f"run the cell in {IN_A_GUEST}",
        )


def set_state(wanted: str, journal: Journal | None = None) -> str:
    """Set ``on``, ``off`` or ``host`` (leave alone), verify it, and return the journal's token ("" for no change).

    Raises:
        UnsupportedHostError: this kernel has none, or this user may not switch it.
        HarnessError: it reads back otherwise.
        InputError: an unknown word.
    """
    if wanted not in {ON, OFF, "host"}:
        raise InputError(f"MGLRU state {wanted!r} is unknown", "host, on or off")
    seen = current()
    if wanted in {"host", seen} or (wanted == OFF and seen == ABSENT):
        return ""
    need(wanted)
    old = procfs.read_text(ENABLED).strip()
    new = "0x0007" if wanted == ON else "0x0000"
    token = journal.record("value", path=ENABLED, old=old, new=new) if journal is not None else ""
    procfs.write_text(ENABLED, new)
    verify(wanted)
    seen_now = procfs.read_text(ENABLED).strip()
    if journal is None or seen_now == new:
        return token
    # Only the parts that the processor supports read back as on (0x0003 on arm64). What is there now is what is to be
    # set back: anything else would look like someone else's change and be left alone.
    corrected = journal.record("value", path=ENABLED, old=old, new=seen_now)
    journal.done(token)
    return corrected


def verify(wanted: str) -> None:
    """Check that the switch is as wanted now.

    Raises:
        HarnessError: it is not.
    """
    seen = current()
    if wanted not in {"host", seen} and not (wanted == OFF and seen == ABSENT):
        raise HarnessError(f"MGLRU is {seen}", f"{wanted} as set", f"see {ENABLED}")


def restore(token: str, journal: Journal) -> None:
    """Set back what ``set_state`` changed."""
    journal.undo(token)


@contextmanager
def held(wanted: str, journal: Journal | None = None) -> Iterator[MglruSetting]:
    """Hold the switch as wanted for the length of the block, then set it back.

    Raises:
        UnsupportedHostError: as :func:`set_state`.
        HarnessError: as :func:`set_state`.
    """
    before = procfs.try_text(ENABLED)
    token = set_state(wanted, journal)
    try:
        yield MglruSetting(wanted, current())
    finally:
        if journal is not None and token:
            restore(token, journal)
        elif before is not None and procfs.try_text(ENABLED) != before:
            procfs.write_text(ENABLED, before.strip())
