"""The contract of the native core. Addresses are virtual addresses of this process; sizes are bytes."""

from collections.abc import Callable, Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from aegaeon_native.arrays import DeviceBytes

class NativeError(RuntimeError):
    """Misuse or a failed system call; the message names the call and errno."""

class OutOfSlabs(NativeError):  # noqa: N818 - the name says what happened
    """The pool, or the grant given with the call, has too few free slabs. Nothing changed."""

class FileSystemFullError(NativeError):
    """A file system is full; what was to be written is there in part."""

def cuda_uuid(ordinal: int, driver: str = "libcuda.so.1") -> str:
    """The UUID of a GPU, without a context on it. Raises NativeError where there is no driver, or no such GPU."""

@final
class CudaDevice:
    """One GPU, through NVIDIA's driver alone. Shares the context of the CUDA runtime, hence of torch. Thread-safe."""

    def __init__(self, ordinal: int, driver: str = "libcuda.so.1") -> None:
        """Load the driver and open the GPU. Raises NativeError saying what this machine lacks."""

    @property
    def ordinal(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def pci_bus_id(self) -> str:
        """As the kernel names it: 0000:0a:00.0."""

    @property
    def locks_read_only(self) -> bool:
        """Whether pages that are mapped for reading alone can be locked; elsewhere they must be mapped writable."""

    @property
    def capability(self) -> int:
        """Ten times the major number plus the minor one: 80, 90."""

    @property
    def granularity(self) -> int:
        """Bytes; slabs of device memory are a multiple of it."""

    @property
    def total_bytes(self) -> int: ...
    @property
    def free_bytes(self) -> int: ...
    def lock_pages(self, address: int, nbytes: int, read_only: bool = False) -> None:
        """Page-lock host memory: copies from and to it run at the link's rate, on every GPU. Takes time; do it ahead.

        256 MiB at a time: during a call of the driver no thread of the process can map or unmap anything.
        `read_only` has no effect where the GPU does not know such locks.
        """

    def unlock_pages(self, address: int) -> None:
        """When no copy uses them any more. Unknown addresses are fine."""

@final
class SlabPool:
    """One tier's physical memory, cut once into slabs of one size. Thread-safe.

    Of an engine with several ranks (devices) a slab is one of each, taken, given back and mapped together.
    """

    @staticmethod
    def private(name: str, slab_bytes: int, slabs: int) -> SlabPool:
        """Device tier on a CPU: an anonymous memfd; pages appear when first touched, or by `prefault`."""

    @staticmethod
    def shared(path: str, slab_bytes: int, slabs: int, device: CudaDevice | None = None) -> SlabPool:
        """Host tier: creates the file `path` (on a tmpfs), which other processes may open with `attach`.

        `device`: its pages are locked for this GPU, which then reaches them through any Range over the pool.
        """

    @staticmethod
    def attach(path: str, device: CudaDevice | None = None) -> SlabPool:
        """Another process's shared pool, for reading blocks its handles name: allocates nothing.

        Mapped for reading, unless `device` can only lock pages that are mapped for writing too.
        """

    @staticmethod
    def cuda(device: CudaDevice, slab_bytes: int, slabs: int) -> SlabPool:
        """Device tier on a GPU: takes all of the memory now. Raises NativeError saying how much fits."""

    @staticmethod
    def gang(pools: Sequence[SlabPool]) -> SlabPool:
        """One pool whose slab i is slab i of each of these, its ranks. They are alike, unused, and not used after."""

    @property
    def ranks(self) -> int: ...
    @property
    def slab_bytes(self) -> int: ...
    @property
    def total(self) -> int: ...
    @property
    def free(self) -> int: ...
    @property
    def kept(self) -> int:
        """Free slabs whose content is kept."""

    @property
    def address(self) -> int:
        """Where the pool is mapped linearly (slab i at address + i * slab_bytes). Shared and attached pools only."""

    @property
    def addresses(self) -> list[int]:
        """The same of each rank; `address` is the first one's, here and below."""

    def take(self, count: int) -> list[int]:
        """`count` free slabs, lowest first; raises OutOfSlabs and takes none when there are too few."""

    def give(self, slabs: Sequence[int]) -> None:
        """Give slabs back; raises NativeError for one that is free already (nothing is given then)."""

    def keep(self, slabs: Sequence[int]) -> int:
        """Give slabs back with what is in them: free, but taken last. Returns the ticket to `reclaim` them with."""

    def reclaim(self, ticket: int) -> list[int]:
        """Take back the kept slabs that were not taken meanwhile: the first ones, in order. A ticket is valid once."""

    def prefault(self, slab: int) -> None:
        """Memory behind a slab, free or taken, from now on instead of from its first use; what is in it stays.

        Raises NativeError for one that is not of this pool, and on a closed pool. Nothing to do on a GPU.
        """

    def check(self) -> None:
        """Check conservation: every slab is free or taken, exactly once. Raises NativeError with the difference."""

    def close(self) -> None:
        """Unmap and close. A shared pool's creator also removes its file. Idempotent."""

@final
class Range:
    """A permanent range of virtual addresses. What is not mapped may not be touched."""

    def __init__(self, pool: SlabPool, slabs: int) -> None:
        """Reserve addresses for `slabs` slabs, for each rank; maps nothing."""

    @property
    def ranks(self) -> int: ...
    @property
    def address(self) -> int: ...
    @property
    def addresses(self) -> list[int]: ...
    @property
    def slabs(self) -> int: ...
    @property
    def mapped(self) -> int: ...
    def map(self, position: int, slabs: Sequence[int]) -> None:
        """Map these slabs of the pool at consecutive positions; raises NativeError if one is mapped already.

        A slab of -1 leaves its position as it is, so `BlockPool.slabs` can be mapped elsewhere as it stands.
        """

    def unmap(self, position: int, count: int) -> list[int]:
        """Unmap and return the slabs, for the pool's `give`."""

    def view(self, offset: int, nbytes: int, rank: int = 0) -> NDArray[np.uint8]:
        """A writable array over these addresses, mapped or not; stays valid over remapping, keeps the Range alive.

        Raises NativeError for device memory.
        """

    def dlpack(self, offset: int, nbytes: int, rank: int = 0) -> DeviceBytes:
        """The same for torch.from_dlpack, on whichever device the range is."""

    def close(self) -> None:
        """Unmap everything (the slabs stay the caller's) and refuse further maps. Views then fault. Idempotent."""

@final
class BlockPool:
    """Blocks of one KV shape in a range of their own; takes slabs of the pool as it grows, gives empty ones back.

    Block i lies at address + i * block_bytes and may cross a slab border. Lowest ids first, so the tail empties.
    Reference-counted: `allocate` gives count 1, `retain` adds, `release` drops. At 0 a block is free, or, when its
    content is to be kept (`keep`), cached until `forget`. `free`, `used` and `held_slabs` are what they would be
    without cached blocks: a caller that needs their slabs evicts them first. Thread-safe.
    """

    def __init__(self, pool: SlabPool, block_bytes: int, max_slabs: int) -> None: ...
    @property
    def ranks(self) -> int: ...
    @property
    def address(self) -> int: ...
    @property
    def addresses(self) -> list[int]: ...
    @property
    def block_bytes(self) -> int: ...
    @property
    def capacity(self) -> int:
        """Blocks that the whole range could hold."""

    @property
    def free(self) -> int:
        """Free and cached blocks in slabs that held blocks touch already."""

    @property
    def used(self) -> int:
        """Blocks that are held."""

    @property
    def references(self) -> int:
        """References to them, all together."""

    @property
    def kept(self) -> int:
        """Blocks whose content is kept, held or cached."""

    @property
    def mapped_slabs(self) -> int:
        """Slabs taken from the pool, for held and cached blocks."""

    @property
    def held_slabs(self) -> int:
        """Of these, the ones that held blocks touch."""

    @property
    def slabs(self) -> list[int]:
        """The slab at each position up to the last one mapped, -1 where none is: how another process finds a block."""

    def cached(self, ready: bool = False) -> NDArray[np.int32]:
        """Cached blocks: unreferenced, their content kept; `ready`: only those that `free` counts."""

    def cached_positions(self) -> NDArray[np.int32]:
        """Mapped positions that cached blocks alone touch: evicting these blocks frees the slabs."""

    def slabs_for(self, count: int) -> int:
        """Slabs that allocate(count) would take from its grant now. Raises OutOfSlabs where the range is too small."""

    def allocate(self, count: int, grant: int) -> NDArray[np.int32]:
        """`count` free blocks, so that `held_slabs` rises by at most `grant`; else OutOfSlabs, and nothing changed."""

    def retain(self, blocks: Sequence[int] | NDArray[np.int32], grant: int = 0) -> None:
        """One more reference to held or cached blocks; slabs that only cached ones touched count against `grant`.

        Raises OutOfSlabs when it is too small, NativeError for a free block; nothing changed then.
        """

    def release(self, blocks: Sequence[int] | NDArray[np.int32]) -> int:
        """Drop one reference each; empty slabs go back to the pool at once. Returns how many slabs went back."""

    def keep(self, blocks: Sequence[int] | NDArray[np.int32]) -> None:
        """Held blocks whose content stays when their last reference goes."""

    def forget(self, blocks: Sequence[int] | NDArray[np.int32]) -> int:
        """The opposite of `keep`: cached ones are free. Returns how many slabs went back to the pool."""

    def view(self, rank: int = 0) -> NDArray[np.uint8]:
        """The whole range as bytes, shape (capacity * block_bytes,). Raises NativeError for device memory."""

    def dlpack(self, rank: int = 0) -> DeviceBytes:
        """The same for torch.from_dlpack, on whichever device the range is."""

    def check(self) -> None:
        """Blocks, references, positions and slabs agree; raises NativeError with the first that does not."""

    def close(self) -> None:
        """Give every slab back to the pool, even of held blocks. Views then fault. Idempotent."""

@final
class EventTable:
    """Events in shared memory, so that two processes can wait for the same copy."""

    @staticmethod
    def create(path: str, slots: int) -> EventTable: ...
    @staticmethod
    def attach(path: str) -> EventTable: ...
    @staticmethod
    def private(slots: int) -> EventTable: ...
    def event(self) -> Event:
        """A fresh event (its slot returns when it is dropped). Raises NativeError when all slots are in use."""

    def open(self, slot: int, generation: int) -> Event:
        """Another process's event, from its `Event.handle`. Events of stale generations count as set."""

    @property
    def in_use(self) -> int: ...
    def close(self) -> None: ...

@final
class Event:
    @property
    def handle(self) -> tuple[int, int]:
        """(slot, generation)"""

    @property
    def done(self) -> bool: ...
    def set(self) -> None: ...
    def wait(self, timeout_s: float) -> bool:
        """True when it is set; a futex wait without the GIL."""

@final
class CopyLane:
    """A thread that copies in order, without the GIL: a CPU's stream. Errors are raised by the next call."""

    def __init__(
        self,
        name: str,
        chunk_bytes: int = 4194304,
        device: CudaDevice | None = None,
        burst_bytes: int = 67108864,
    ) -> None:
        """`device`: the bytes are moved by a stream of this GPU, which runs empty after each `burst_bytes`, so that
        its copy engine serves other streams in between."""

    def copy(self, dst: int, src: int, nbytes: int, tag: int = 0) -> None: ...
    def copy_blocks(
        self,
        dst: int,
        src: int,
        block_bytes: int,
        dst_blocks: NDArray[np.int32],
        src_blocks: NDArray[np.int32],
        tag: int = 0,
    ) -> None:
        """dst + dst_blocks[i] * block_bytes <- src + src_blocks[i] * block_bytes, for all i: one call a request."""

    def record(self, event: Event) -> None:
        """The event is set when everything queued before it is done."""

    def wait(self, event: Event) -> None:
        """What is queued after waits for the event."""

    def cancel(self, tag: int) -> None:
        """Copies with this tag stop at their next chunk and count as done; later ones with it are skipped.

        Tags name commands and are not used twice. Ask `cancelled` when the event recorded behind the copies has
        happened. Tag 0 cannot be cancelled.
        """

    def cancelled(self, tag: int) -> bool:
        """Whether a copy with this tag was truncated or skipped: its destination is then incomplete.

        False when the cancel came too late to matter. Asking when no copy with the tag is pending forgets the tag.
        """

    def synchronize(self, timeout_s: float = ...) -> bool:
        """Wait until everything queued is done; False on timeout. Without limit by default.

        Small copies of this machine's memory that the lane has not begun are made by the thread that waits.
        """
    @property
    def bytes_copied(self) -> int: ...
    @property
    def pending(self) -> int: ...
    def close(self) -> None:
        """Finish what is queued and join. Idempotent.

        Raises NativeError when a queued `wait` does not end within 10 s; what is behind it is dropped. A lane that is
        not closed but garbage-collected drops what is queued.
        """

@final
class StageRing:
    """`depth` slots of `chunk_bytes`, `readers` of them read into at a time: files into memory, by native threads."""

    def __init__(self, chunk_bytes: int, depth: int, readers: int, device: CudaDevice | None = None) -> None:
        """With `device` the slots are page-locked, and a run may write to its memory."""
    @staticmethod
    def formats() -> list[str]:
        """The number formats by their names in safetensors; `run` takes them by their place in here."""

    def run(
        self,
        files: Sequence[str],
        chunks: NDArray[np.uint64],
        parts: NDArray[np.uint64],
        destinations: Sequence[int],
        into_file: int,
        on_device: int,
        format: int,
        inspect: Callable[[int, NDArray[np.uint8]], None] | None,
        watch: Callable[[int], bool],
    ) -> bool:
        """Read chunks and copy their parts, converted to `format`, to every destination. One run at a time.

        `destinations` are addresses of this machine's memory, `into_file` is a file's descriptor, or -1, `on_device` an
        address of the device's, or 0.

        `chunks`: rows of (file, first byte, bytes, number of parts); `parts`, in the chunks' order: rows of (byte of
        the file, bytes, format, byte of the destination). `inspect(chunk, bytes)` is called by several threads at once,
        before the chunk is copied; `watch(bytes done)` by this one a few times a second, at the start and at the end:
        False stops it. Returns whether it was not stopped; raises NativeError when a file cannot be read or ends early,
        FileSystemFullError when that of `into_file` cannot grow.
        """

NO_TOKEN: int

def cpu_level() -> str:
    """baseline, avx2 or avx512: the vector instructions that the core uses. What the processor has, or less, where
    AEGAEON_CPU_LEVEL says so. Raises NativeError for another word, and for more than the processor has."""

def row_product_supported() -> bool:
    """Whether this processor can: it needs AVX2 and FMA, or AVX-512."""

def row_product(x: int, weights: int, out: int, rows: int, outer: int, inner: int) -> None:
    """out [rows, outer] = x [rows, inner] @ weights [outer, inner].T, float32, contiguous, at these addresses.

    The bits of a row are the same whatever the number of rows, the processor's level and the helpers: each sum runs in
    order over 512 items at a time, and over their sums. Without the GIL. Raises NativeError where it is not
    supported.
    """

def set_product_helpers(count: int) -> None:
    """So many threads of the process take part in its row products from now on, wherever processors are free for them.
    No product is to be computed at the time."""

def likeliest(logits: int, rows: int, columns: int, stride: int) -> list[int]:
    """The argmax of each row of float32 [rows, columns] at this address, the first of equal ones, as numpy's.

    `stride`: items from a row to the next. NO_TOKEN where that logit, and so the row, is not finite.
    """

def advance(tokens: Sequence[int], ids: int, places: int, ends: int) -> None:
    """The arrays of a decode step, at these addresses, one token further: `ids`, int32 [rows], are these tokens, and
    `places`, int64 [2, rows], and `ends`, int32 [rows], larger by one."""
