"""The rates of an accelerator's memory and link by CUDA's driver library, where both are present (paper section 8).

The library is loaded at run time; without it, or without a device, the rates are unmeasured and the reason is said. A
kernel reads memory in place and sums what it read by exclusive or, which must be the processor's own sum: a rate whose
bytes did not come is a failure. Untested on hardware: it was run against a stand-in of the driver alone.
"""

from __future__ import annotations

import ctypes
import datetime as dt
import mmap
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from pytest_moetier.errors import HarnessError, MoetierError, UnsupportedHostError
from pytest_moetier.span import Span
from pytest_moetier.tiers.constants import Constants, Rate
from pytest_moetier.units import format_bytes

if TYPE_CHECKING:
    import numpy as np

LIBRARY = "libcuda.so.1"
OF_THE_DEVICE = ("hbm", "link_file_backed", "link_host_alloc", "link_malloc", "link_ceiling", "stream_overlapped")
SIZE_BYTES = 512 << 20
_REPEATS, _BLOCKS, _THREADS = 5, 1024, 256
_OWN_PASSES = 9  # of its own memory in one launch: reading it once takes no longer than a launch; odd, for the xor
_PROCESSORS, _INTEGRATED, _PAGEABLE, _HOST_TABLES = 16, 18, 88, 100  # CU_DEVICE_ATTRIBUTE_*
_PORTABLE_MAPPED = 3  # CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP
_NOT_COHERENT = (
    "the device cannot read pageable memory through the processor's page tables: there is no coherent link"
    " (CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, ..._USES_HOST_PAGE_TABLES)"
)

READ_KERNEL = b"""
.version 6.0
.target sm_60
.address_size 64

.visible .entry read_all(.param .u64 from, .param .u64 count, .param .u32 passes, .param .u64 sum)
{
    .reg .pred %p;
    .reg .b32 %r<12>;
    .reg .b64 %d<8>;
    ld.param.u64 %d1, [from];
    ld.param.u64 %d2, [count];
    ld.param.u32 %r10, [passes];
    ld.param.u64 %d3, [sum];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.u32 %r1, %r1, %r2, %r3;
    mov.u32 %r3, %nctaid.x;
    mul.lo.u32 %r2, %r2, %r3;
    cvt.u64.u32 %d5, %r2;
    mov.u32 %r4, 0;
AGAIN:
    cvt.u64.u32 %d4, %r1;
NEXT:
    setp.ge.u64 %p, %d4, %d2;
    @%p bra DONE;
    shl.b64 %d6, %d4, 4;
    add.u64 %d6, %d1, %d6;
    ld.volatile.v4.u32 {%r5, %r6, %r7, %r8}, [%d6];
    xor.b32 %r5, %r5, %r6;
    xor.b32 %r7, %r7, %r8;
    xor.b32 %r4, %r4, %r5;
    xor.b32 %r4, %r4, %r7;
    add.u64 %d4, %d4, %d5;
    bra NEXT;
DONE:
    sub.u32 %r10, %r10, 1;
    setp.ne.u32 %p, %r10, 0;
    @%p bra AGAIN;
    atom.xor.b32 %r9, [%d3], %r4;
    ret;
}
\0"""
"""All threads read all of it, 16 bytes at a time, ``passes`` times, and xor what they read into ``sum``."""


class _Driver:
    """The driver library: a call that fails raises with its name and what the driver calls the error."""

    def __init__(self) -> None:
        """Load the library.

        Raises:
            UnsupportedHostError: there is none.
        """
        try:
            self._library = ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise UnsupportedHostError(
                f"no CUDA driver library here ({error})",
                "a GPU with its driver",
                "give its rates in a file (moetier-tiers/1): --constants FILE, in bench/ --moetier-constants FILE",
            ) from error

    def __call__(self, name: str, *arguments: object) -> None:
        code = int(getattr(self._library, name)(*arguments))
        if code == 0:
            return
        told = ctypes.c_char_p()
        self._library.cuGetErrorName(code, ctypes.byref(told))
        raise UnsupportedHostError(
            f"{name} answers {(told.value or b'?').decode(errors='replace')} ({code})", "a working GPU and driver"
        )

    def attribute(self, device: ctypes.c_int, number: int) -> int:
        value = ctypes.c_int()
        self("cuDeviceGetAttribute", ctypes.byref(value), ctypes.c_int(number), device)
        return value.value


class _Gpu:
    """One device, its context and the kernel."""

    def __init__(self, driver: _Driver, stack: ExitStack) -> None:
        """Take the first device; what is taken is given back by ``stack``."""
        self.driver = driver
        driver("cuInit", ctypes.c_uint(0))
        count, device, name = ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(128)
        driver("cuDeviceGetCount", ctypes.byref(count))
        if count.value == 0:
            raise UnsupportedHostError("the CUDA driver sees no device", "a GPU")
        driver("cuDeviceGet", ctypes.byref(device), ctypes.c_int(0))
        driver("cuDeviceGetName", name, ctypes.c_int(len(name)), device)
        self.device, self.name = device, name.value.decode(errors="replace")
        context, module = ctypes.c_void_p(), ctypes.c_void_p()
        driver("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        stack.callback(driver, "cuDevicePrimaryCtxRelease_v2", device)
        driver("cuCtxSetCurrent", context)
        driver("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(READ_KERNEL))
        stack.callback(driver, "cuModuleUnload", module)
        self._kernel = ctypes.c_void_p()
        driver("cuModuleGetFunction", ctypes.byref(self._kernel), module, ctypes.c_char_p(b"read_all"))
        self._events = []
        for _ in range(2):
            event = ctypes.c_void_p()
            driver("cuEventCreate", ctypes.byref(event), ctypes.c_uint(0))
            stack.callback(driver, "cuEventDestroy_v2", event)
            self._events.append(event)
        self._sum = stack.enter_context(self.memory(4))

    @contextmanager
    def memory(self, size: int) -> Iterator[ctypes.c_uint64]:
        """Yield memory of the device's own."""
        address = ctypes.c_uint64()
        self.driver("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        try:
            yield address
        finally:
            self.driver("cuMemFree_v2", address)

    @contextmanager
    def pinned(self, size: int) -> Iterator[ctypes.c_void_p]:
        """Yield memory of the host that the driver allocated, which the device sees at the same address."""
        address = ctypes.c_void_p()
        self.driver("cuMemHostAlloc", ctypes.byref(address), ctypes.c_size_t(size), ctypes.c_uint(_PORTABLE_MAPPED))
        try:
            yield address
        finally:
            self.driver("cuMemFreeHost", address)

    def timed(self, work: Callable[[], None]) -> float:
        """Return the seconds that work on the device takes, by the device's clock."""
        milliseconds = ctypes.c_float()
        before, after = self._events
        self.driver("cuEventRecord", before, None)
        work()
        self.driver("cuEventRecord", after, None)
        self.driver("cuEventSynchronize", after)
        self.driver("cuEventElapsedTime", ctypes.byref(milliseconds), before, after)
        return milliseconds.value / 1e3

    def reads(self, address: int, size: int, expected: int, passes: int = 1) -> tuple[float, ...]:
        """Return the bytes a second of each read of memory in place.

        Raises:
            HarnessError: the device read other bytes than the processor.
        """
        values, found = [], ctypes.c_uint32()
        words = (ctypes.c_uint64(address), ctypes.c_uint64(size // 16), ctypes.c_uint32(passes), self._sum)
        given = (ctypes.c_void_p * len(words))(*(ctypes.addressof(one) for one in words))
        shape = [ctypes.c_uint(one) for one in (_BLOCKS, 1, 1, _THREADS, 1, 1, 0)]
        for _ in range(_REPEATS):
            self.driver("cuMemsetD32_v2", self._sum, ctypes.c_uint(0), ctypes.c_size_t(1))
            seconds = self.timed(lambda: self.driver("cuLaunchKernel", self._kernel, *shape, None, given, None))
            self.driver("cuMemcpyDtoH_v2", ctypes.byref(found), self._sum, ctypes.c_size_t(4))
            if found.value != expected:
                raise HarnessError(f"the device read {found.value:#x} where the processor reads {expected:#x}")
            values.append(size * passes / seconds)
        return tuple(values)

    def copies(self, target: ctypes.c_uint64, source: ctypes.c_void_p, size: int) -> tuple[float, ...]:
        """Return the bytes a second of each copy to the device."""
        words = (target, source, ctypes.c_size_t(size), None)
        return tuple(size / self.timed(lambda: self.driver("cuMemcpyHtoDAsync_v2", *words)) for _ in range(_REPEATS))


def probe_cuda(folder: Path | None = None, size_bytes: int = SIZE_BYTES) -> Constants:
    """Return the rates of the first GPU; where there is none, none are measured, and each says why.

    Args:
        folder: where a file without a name is made, for the device to read; None: the folder for temporary files.
        size_bytes: of what is read; a multiple of 16, larger than every cache of the device.
    """
    try:
        with ExitStack() as stack:
            return _measure(_Gpu(_Driver(), stack), folder, size_bytes)
    except (MoetierError, OSError) as error:
        return Constants("here", "no GPU was measured", None, {}, unmeasured=dict.fromkeys(OF_THE_DEVICE, str(error)))


def _measure(gpu: _Gpu, folder: Path | None, size: int) -> Constants:
    import numpy as np  # noqa: PLC0415 - only where there is a GPU

    content = np.frombuffer(np.random.default_rng(0).bytes(size), dtype=np.uint32)
    expected = int(np.bitwise_xor.reduce(content))
    unified = bool(gpu.driver.attribute(gpu.device, _INTEGRATED))
    coherent = all(gpu.driver.attribute(gpu.device, one) for one in (_PAGEABLE, _HOST_TABLES))
    found: dict[str, tuple[float, ...]] = {}
    with gpu.pinned(size) as host, gpu.memory(size) as own:
        ctypes.memmove(host, content.ctypes.data, size)
        found["stream_overlapped"] = gpu.copies(own, host, size)
        found["hbm"] = gpu.reads(own.value, size, expected, _OWN_PASSES)
        found["link_host_alloc"] = gpu.reads(int(host.value or 0), size, expected)
    if coherent:
        found["link_malloc"] = gpu.reads(content.ctypes.data, size, expected)
        with _file(content, folder) as address:
            found["link_file_backed"] = gpu.reads(address, size, expected)
    day = dt.datetime.now(tz=dt.UTC).date().isoformat()
    source = f"CUDA probe on this host: {gpu.name}, {format_bytes(size)}, median of {_REPEATS}"
    words = {
        "stream_overlapped": ": the copy engine alone, from pinned memory, nothing computed beside: an upper bound"
    }
    rates = {
        name: Rate(name, Span.of(values, median(values)), source + words.get(name, ""), day)
        for name, values in found.items()
    }
    absent = {} if coherent else dict.fromkeys(("link_file_backed", "link_malloc"), _NOT_COHERENT)
    unmeasured = {"link_ceiling": "no probe tells the link's ceiling from what a copy reaches"}
    return Constants("here", gpu.name, unified, rates, absent, unmeasured)


@contextmanager
def _file(content: np.ndarray[Any, Any], folder: Path | None) -> Iterator[int]:
    """Yield the address of a mapped file with this content, whose pages are resident."""
    import numpy as np  # noqa: PLC0415

    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(content.tobytes())
        file.flush()
        with mmap.mmap(file.fileno(), content.nbytes, prot=mmap.PROT_READ) as mapped:
            view = np.frombuffer(mapped, dtype=np.uint8)
            try:
                view[:: mmap.PAGESIZE].sum()  # every page mapped, as far as the processor is concerned
                yield int(view.ctypes.data)
            finally:
                del view  # the mapping cannot be closed while it is looked at
