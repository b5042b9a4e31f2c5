"""The engine's process: runs one ``Job`` and says so in events, one JSON object a line (``python -m ... JOB.json``).

It may run behind a memory wall, so it imports little: no numpy. Its standard output is the protocol's alone; what the
engine prints goes to standard error. At a gate it waits for a line on standard input; where that ends, so does it.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import resource
import signal
import struct
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from pytest_moetier.engine import abi, llama, policies
from pytest_moetier.engine.job import GATES, Job
from pytest_moetier.errors import HarnessError, InputError, MoetierError, UnsupportedHostError
from pytest_moetier.host import procfs, residency

_TOPK, _LOGITS = b"ffn_moe_topk-", b"ffn_moe_logits-"
_KINDS = ((InputError, "input"), (UnsupportedHostError, "unsupported"))
_IDLE_SECONDS = 1.0
_PDEATHSIG = 1  # prctl's


class Voice:
    """The protocol's lines, on a descriptor that nothing else writes to."""

    def __init__(self) -> None:
        """Take over standard output, and give its number to standard error."""
        self._descriptor = os.dup(1)
        os.dup2(2, 1)

    def say(self, event: str, **fields: object) -> None:
        """Write one event."""
        line = json.dumps({"event": event, **fields}, separators=(",", ":")).encode() + b"\n"
        while line:
            line = line[os.write(self._descriptor, line) :]

    def fail(self, error: MoetierError) -> None:
        """Write what went wrong."""
        kind = next((name for kind, name in _KINDS if isinstance(error, kind)), "harness")
        self.say("error", kind=kind, seen=error.seen, expected=error.expected, do=error.do)


def aborted(voice: Voice, text: str) -> None:
    """Say what the engine ended itself for, and end: what runs on after an abort is undefined."""
    voice.fail(HarnessError(f"the engine ended itself: {text}", "a model that it can compute", abi.INSTALL))
    os._exit(1)


class Watcher:
    """Sees every choice of the router as the engine computes it: tells the policy, keeps it, recomputes it."""

    def __init__(self, library: abi.Library, job: Job) -> None:
        """Watch nothing yet: until ``policy`` is set, only the layers are noted."""
        self._library, self._job = library, job
        self.policy: policies.Policy | None = None
        self.failure: BaseException | None = None
        self.layers: set[int] = set()
        self.rows: list[tuple[int, list[list[int]]]] = []
        self.strange = self.compared = self.different = 0
        self._logits: dict[int, list[list[float]]] = {}

    def seen(self, address: int, ask: bool) -> bool:  # noqa: FBT001 - the engine's callback
        """Answer the engine: what is to be shown, and whether to go on."""
        tensor = abi.Tensor.from_address(address)
        name = tensor.name
        if ask:
            return name.startswith(_TOPK) or (self._job.logits and name.startswith(_LOGITS))
        try:
            self._take(name, tensor, address)
        except BaseException as error:  # noqa: BLE001 - it cannot pass through the engine: kept, and raised after the call
            self.failure = error
            return False
        return True

    def _take(self, name: bytes, tensor: abi.Tensor, address: int) -> None:
        head, _, number = name.partition(b"-")
        layer = int(number)
        if head + b"-" == _LOGITS:
            self._logits[layer] = llama.rows(self._library, tensor, address, ctypes.c_float)
            return
        if tensor.type != abi.TYPE_I32 or tensor.ne[0] != self._job.k:
            self.strange += 1
            return
        self.layers.add(layer)
        chosen = [[int(one) for one in row] for row in llama.rows(self._library, tensor, address, ctypes.c_int32)]
        if self.policy is None or not chosen:
            return
        worst = max(map(max, chosen))
        if worst >= self._job.experts or min(map(min, chosen)) < 0:
            raise HarnessError(f"layer {layer} chose expert {worst}", f"0 to {self._job.experts - 1}")
        if self.policy.name in policies.WANT_CHOICES:
            self.policy.chosen(layer, sorted({expert for row in chosen for expert in row}))
        if self._job.capture:
            self.rows.append((layer, chosen))
        if self._job.logits:
            self._compare(layer, chosen)

    def _compare(self, layer: int, chosen: list[list[int]]) -> None:
        logits = self._logits.pop(layer, [])
        if len(logits) != len(chosen):
            raise HarnessError(f"layer {layer} has {len(logits)} rows of logits", f"{len(chosen)}, as it has choices")
        for row, experts in zip(logits, chosen, strict=True):
            best = sorted(range(len(row)), key=row.__getitem__, reverse=True)[: self._job.k]
            self.compared += 1
            self.different += set(best) != set(experts)


class Run:
    """One job from its beginning to its end."""

    def __init__(self, job: Job, voice: Voice) -> None:
        """Load the model and say so.

        Raises:
            MoetierError: the job, the model or the engine cannot be used.
        """
        self._job, self._voice = job, voice
        llama.check_prompt(job)
        library, log = abi.load_library(), llama.Log()
        self._alive = llama.start(library, log, lambda text: aborted(voice, text))
        comparable = llama.check_model(library, job)
        if job.logits and not comparable:
            raise InputError("the router's choice does not follow from its logits alone (exp_probs_b)", "no such bias")
        watching = job.capture or job.logits or job.policy in policies.WANT_CHOICES
        self._watcher = Watcher(library, job)
        begun = time.perf_counter()
        self._engine = llama.Engine(library, job, log, self._watcher.seen if watching else None)
        self._load_seconds = time.perf_counter() - begun
        self._prompt = self._engine.ids(job.prompt)
        self._weights = policies.Weights(job)
        if job.load_mode == "mmap" and not self._weights.regions:
            raise HarnessError("the engine has not mapped the model's files", "load mode mmap")
        sizes = self._engine.sizes
        voice.say(
            "loaded",
            seconds=self._load_seconds,
            version=library.version,
            backend=library.backend,
            device=library.device,
            system_info=library.system_info,
            n_ctx=sizes.n_ctx,
            n_batch=sizes.n_batch,
            n_ubatch=sizes.n_ubatch,
            vocabulary=sizes.vocabulary,
            maps=[
                {"path": job.files[one.file], "offset": one.offset, "bytes": one.length}
                for one in self._weights.regions
            ],
            buffers=log.buffers,
        )
        self._warm_up(watching=watching)
        self._policy = policies.Policy(job, self._weights)
        self._watcher.policy = self._policy
        self._position = 0
        self._seconds = {"load": self._load_seconds, "prefill": 0.0, "decode": 0.0}

    def _warm_up(self, *, watching: bool) -> None:
        """Touch every buffer of the computation with tokens of no meaning, then forget and drop them and the model."""
        self._decode([0] * min(len(self._prompt), self._engine.sizes.n_ubatch))
        if len(self._prompt) < self._engine.sizes.n_ctx:
            self._decode([0])
        self._engine.best()
        self._engine.forget()
        missing = sorted({layer.layer for layer in self._job.layers} - self._watcher.layers)
        if watching and (missing or not self._watcher.layers):
            raise UnsupportedHostError(
                f"the engine names no choice of {self._job.k} experts (ffn_moe_topk) in layers {missing[:8]}",
                "one in every layer with experts",
                "use a model whose experts llama.cpp computes in its common way",
            )
        self._watcher.strange = 0
        self._weights.unmap(spine=True)
        self._weights.write_out()
        self._weights.drop()
        locked = self._weights.lock_spine() if self._job.lock_spine else 0
        experts, files = self._weights.resident(), self._weights.resident_files()
        self._voice.say("reset", resident_bytes=experts, file_bytes=files, locked_bytes=locked)

    def go(self) -> None:
        """Compute, and say what happened.

        Raises:
            MoetierError: the engine broke, or a hint failed.
        """
        self._gate("ready")
        best = self._prefill()
        self._gate("decode")
        ids = [best]
        for index in range(1, self._job.tokens):
            best = self._token(index, "decode", [best])
            ids.append(best)
        self._policy.finish()
        self._gate("end")
        if self._job.logits:
            self._voice.say("choices_checked", compared=self._watcher.compared, different=self._watcher.different)
        policy = self._policy
        self._voice.say(
            "policy",
            name=policy.name,
            calls=policy.calls,
            advised_bytes=policy.advised_bytes,
            read_bytes=policy.read_bytes,
            unread=policy.unread,
            seconds=policy.seconds,
        )
        digest = hashlib.sha256(struct.pack(f"<{len(ids)}i", *ids)).hexdigest()
        prompt = len(self._prompt)
        self._voice.say(
            "done", ids=ids, sha256=digest, seconds=self._seconds, prompt_tokens=prompt, strange=self._watcher.strange
        )

    def _prefill(self) -> int:
        step = self._engine.sizes.n_ubatch
        chunks = [self._prompt[at : at + step] for at in range(0, len(self._prompt), step)]
        return self._token(0, "prefill", *chunks)

    def _token(self, index: int, phase: str, *chunks: Sequence[int]) -> int:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        seconds = 0.0
        for ids in chunks:
            begun = time.perf_counter()
            self._decode(ids)
            seconds += time.perf_counter() - begun
            self._say_choices(phase, len(ids))
            self._position += len(ids)
        begun = time.perf_counter()
        best = self._engine.best()
        seconds += time.perf_counter() - begun
        after = resource.getrusage(resource.RUSAGE_SELF)
        self._seconds[phase] += seconds
        self._voice.say(
            "token",
            index=index,
            id=best,
            phase=phase,
            seconds=seconds,
            majflt=after.ru_majflt - usage.ru_majflt,
            minflt=after.ru_minflt - usage.ru_minflt,
        )
        dropped = self._policy.token_done()
        if dropped is not None:
            self._voice.say("dropped", resident_bytes=dropped[0], seconds=dropped[1])
        return best

    def _decode(self, ids: Sequence[int]) -> None:
        try:
            self._engine.decode(ids)
        finally:
            if self._watcher.failure is not None:
                raise self._watcher.failure

    def _say_choices(self, phase: str, count: int) -> None:
        if not self._watcher.rows:
            return
        # Fewer rows than tokens: the last layer computes only what is asked for, the last token.
        layers = [
            {"layer": layer, "position": self._position + count - len(rows), "experts": rows}
            for layer, rows in self._watcher.rows
        ]
        self._watcher.rows = []
        self._voice.say("choice", phase=phase, position=self._position, tokens=count, layers=layers)

    def _gate(self, at: str) -> None:
        self._capture(at)
        self._voice.say("gate", at=at)
        if not sys.stdin.buffer.readline():
            os._exit(1)  # whoever asked is gone
        if at != GATES[-1]:
            self._capture(f"{at}:go")

    def _capture(self, at: str) -> None:
        paths = self._job.capture_paths
        inflight = [path for path in paths if path.endswith("/inflight")]
        until = time.monotonic() + _IDLE_SECONDS
        while moving := [path for path in inflight if set((procfs.try_text(path) or "").split()) - {"0"}]:
            if time.monotonic() > until:
                break
            time.sleep(0.001)
        clock = time.clock_gettime(time.CLOCK_MONOTONIC)
        files = [{"path": path, "text": procfs.try_text(path)} for path in paths]
        idle = {"inflight_zero": not moving} if inflight else {}
        self._voice.say("capture", at=at, clock_seconds=clock, files=files, **idle)


def main(arguments: Sequence[str]) -> int:
    """Run the job in the file that is named; 0: done, 1: something broke, 2: refused."""
    residency.libc().prctl(_PDEATHSIG, int(signal.SIGKILL))  # a long prefill would outlive a killed parent
    os.environ["GGML_NO_BACKTRACE"] = "1"  # an abort would start a debugger
    voice = Voice()
    try:
        Run(Job.read(Path(arguments[0])), voice).go()
    except (InputError, UnsupportedHostError) as error:
        voice.fail(error)
        return 2
    except MoetierError as error:
        voice.fail(error)
        return 1
    except (OSError, MemoryError) as error:
        voice.fail(HarnessError(f"the worker failed: {error!r}", "a run to its end"))
        return 1
    return 0


if __name__ == "__main__":
    sys.stderr.flush()
    os._exit(main(sys.argv[1:]))  # freeing the model would only take time
