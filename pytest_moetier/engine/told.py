"""What a worker told in its events, as typed records: nothing past this module sees an event."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pytest_moetier.engine.run import Choices, PolicyTotals, Token
from pytest_moetier.errors import HarnessError
from pytest_moetier.host.snapshot import Capture


@dataclass(slots=True)
class Told:
    """Collects a worker's events; ``hear`` takes one.

    Attributes:
        backend: of ``loaded``, as all up to ``buffers``.
        captures: by their moment: a gate's name, and ``GATE:go``.
        locked_bytes: of the spine.
        dropped: expert bytes resident after each drop.
        drop_seconds: of all drops.
        ids: as its last word has them.
        seconds: ``load``, ``prefill`` and ``decode``.
        prompt_tokens: positions of the prompt.
    """

    backend: str = ""
    system_info: str = ""
    context: int = 0
    batch: int = 0
    micro_batch: int = 0
    vocabulary: int = 0
    maps: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()
    captures: dict[str, Capture] = field(default_factory=dict)
    locked_bytes: int = 0
    tokens: list[Token] = field(default_factory=list)
    dropped: list[int | None] = field(default_factory=list)
    drop_seconds: float = 0.0
    policy: PolicyTotals = field(default_factory=PolicyTotals)
    compared: int = 0
    different: int = 0
    ids: tuple[int, ...] = ()
    sha256: str = ""
    seconds: tuple[float, float, float] = (0.0, 0.0, 0.0)
    prompt_tokens: int = 0
    warnings: list[str] = field(default_factory=list)
    _rows: list[tuple[bool, int, int, list[int]]] = field(default_factory=list)

    def hear(self, event: Mapping[str, Any]) -> None:
        """Take one event; one that is not known is passed over: a gate, or a line for a human.

        Raises:
            HarnessError: it lacks a part.
        """
        take = getattr(self, f"_take_{event['event']}", None)
        try:
            if take is not None:
                take(event)
        except (KeyError, TypeError, ValueError) as error:
            raise HarnessError(
                f"the worker's event {event['event']!r} lacks a part ({error!r})", "a worker of this version"
            ) from error

    def choices(self) -> Choices:
        """Return the router's choices.

        Raises:
            HarnessError: rows of several widths.
        """
        prefill, position, layer, experts = zip(*self._rows, strict=True) if self._rows else ((), (), (), ())
        try:
            ids = np.array(experts, dtype=np.uint16)
        except ValueError as error:
            raise HarnessError("the worker's choices differ in width", "k experts in each") from error
        return Choices(
            prefill=np.array(prefill, dtype=bool),
            position=np.array(position, dtype=np.uint32),
            layer=np.array(layer, dtype=np.uint16),
            experts=ids,
            compared=self.compared,
            different=self.different,
        )

    @property
    def idle_at_gates(self) -> bool | None:
        """Whether no request was in flight at any capture; None where nobody looked."""
        seen = [one.inflight_zero for one in self.captures.values()]
        return None if None in seen or not seen else all(seen)

    def _take_loaded(self, event: Mapping[str, Any]) -> None:
        self.backend, self.system_info = str(event["backend"]), str(event["system_info"])
        self.context, self.batch, self.micro_batch = (int(event[name]) for name in ("n_ctx", "n_batch", "n_ubatch"))
        self.vocabulary = int(event["vocabulary"])
        self.buffers = tuple(str(one) for one in event.get("buffers", ()))
        self.maps = tuple(dict.fromkeys(str(one["path"]) for one in event["maps"]))

    def _take_capture(self, event: Mapping[str, Any]) -> None:
        one = Capture.from_event(event)
        self.captures[one.at] = one

    def _take_reset(self, event: Mapping[str, Any]) -> None:
        self.locked_bytes = int(event["locked_bytes"])

    def _take_token(self, event: Mapping[str, Any]) -> None:
        fault = int(event["majflt"]), int(event["minflt"])
        self.tokens.append(Token(int(event["id"]), str(event["phase"]), float(event["seconds"]), *fault))

    def _take_choice(self, event: Mapping[str, Any]) -> None:
        prompt = event["phase"] == "prefill"
        if prompt:
            self.prompt_tokens = max(self.prompt_tokens, int(event["position"]) + int(event["tokens"]))
        for layer in event["layers"]:
            self._rows += [
                (prompt, int(layer["position"]) + at, int(layer["layer"]), row)
                for at, row in enumerate(layer["experts"])
            ]

    def _take_choices_checked(self, event: Mapping[str, Any]) -> None:
        self.compared, self.different = int(event["compared"]), int(event["different"])

    def _take_dropped(self, event: Mapping[str, Any]) -> None:
        left = event["resident_bytes"]
        self.dropped.append(None if left is None else int(left))
        self.drop_seconds += float(event.get("seconds", 0.0))

    def _take_policy(self, event: Mapping[str, Any]) -> None:
        self.policy = PolicyTotals(
            calls=int(event["calls"]),
            advised_bytes=int(event["advised_bytes"]),
            read_bytes=int(event["read_bytes"]),
            unread=int(event["unread"]),
            seconds=float(event["seconds"]),
        )

    def _take_warning(self, event: Mapping[str, Any]) -> None:
        self.warnings.append(str(event["text"]))

    def _take_done(self, event: Mapping[str, Any]) -> None:
        self.ids, self.sha256 = tuple(int(one) for one in event["ids"]), str(event["sha256"])
        spent = event["seconds"]
        self.seconds = float(spent["load"]), float(spent["prefill"]), float(spent["decode"])
        self.prompt_tokens = int(event.get("prompt_tokens", self.prompt_tokens))
