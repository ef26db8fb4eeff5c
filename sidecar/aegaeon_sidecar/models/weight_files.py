"""One model's files as they were when the model was described; a read of changed files fails.

A model whose weights are not in the host cache is read from its files at every load, and a change between two loads
would otherwise go unnoticed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from aegaeon_sidecar.domain.errors import FilesChangedError, UnreadableError, WeightsError
from aegaeon_sidecar.models.adapters import read_adapter
from aegaeon_sidecar.models.config import read_spec
from aegaeon_sidecar.models.documents import MOST_CONFIG_BYTES, read_document
from aegaeon_sidecar.models.files import find_tensors, read_tensors
from aegaeon_sidecar.models.header import FileTensor
from aegaeon_sidecar.models.layout import ENGINE_DTYPES
from aegaeon_sidecar.models.placement import CONFIG, Layout, Placement
from aegaeon_sidecar.models.runs import Runs
from aegaeon_sidecar.models.sharding import Deal
from aegaeon_sidecar.models.states import SETTLED_NS, Descriptors, FileState, opened, states_of

_CHANGED = "the files changed since the model was laid out; describe it again"


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """`states` are those of `layout.config` and the weight files, in order; `places`: every tensor in the order of the
    files' bytes, and where it goes in the image; `config`: hash of `layout.config`.

    `identity`: a name for the weight files as they are and for what is made of them, 32 hex digits.
    """

    directory: Path
    layout: Layout
    states: tuple[FileState, ...]
    places: Mapping[FileTensor, Placement]
    config: str
    identity: str

    @contextmanager
    def opened(self) -> Iterator[Descriptors]:
        """The files, open for reading; what is read is theirs if the block ends without an error.

        Raises FilesChangedError when one is not as it was, at the beginning or at the end, and the errors of `opened`.
        """
        with opened(_watched(self.directory, self.layout)) as files:
            _check(self.states, files, "; it changed since it was last read")
            try:
                yield files
            except UnreadableError:
                _check(self.states, files, "; it changed while it was read")  # which is why, if it did
                raise
            _check(self.states, files, "; it changed while it was read")


def look(directory: Path, layout: Layout) -> WeightFiles:
    """The files as they are now, which must be those that `layout` was made of. Reads no tensor.

    Raises WeightsError when they are not, ConfigError, and FilesChangedError when they change at this moment.
    """
    paths = _watched(directory, layout)
    with opened(paths) as files:
        _await_stable_times(states_of(files))
        states, places = states_of(files), _places(directory, layout)
        config = sha256(read_document(directory / layout.config, MOST_CONFIG_BYTES)).hexdigest()
        with opened(paths) as again:  # what was read by its name is what was compared
            _check(states, again, " just now; try again when it is complete")
    named = repr((states[1:], layout.tensors, layout.ranks, layout.dtype, *_made(layout, config)))
    return WeightFiles(directory, layout, states, places, config, sha256(named.encode()).hexdigest()[:32])


def _made(layout: Layout, config: str) -> tuple[object, ...]:
    """The inputs of an image beside the files' bytes and the names of their tensors."""
    if layout.plan is None:
        return ()
    return (layout.made_by, config, sorted(layout.plan.items())) if layout.bake else (sorted(layout.plan.items()),)


def _check(states: tuple[FileState, ...], files: Descriptors, when: str) -> None:
    """Raises FilesChangedError, which says `when`, unless the files are as in these states."""
    for path, before, now in zip(files, states, states_of(files), strict=True):
        if change := before.change_to(now):
            raise FilesChangedError(f"{path}: {change}{when}")


def _watched(directory: Path, layout: Layout) -> tuple[Path, ...]:
    return (directory / layout.config, *layout.files)


def _places(directory: Path, layout: Layout) -> dict[FileTensor, Placement]:
    to = (
        _placed_by_name(directory, layout)
        if layout.plan is None
        else _placed_by_plan(_tensors(directory, layout), layout.plan)
    )
    return dict(sorted(to.items(), key=lambda entry: (entry[0].file, entry[0].offset)))


def _tensors(directory: Path, layout: Layout) -> dict[str, FileTensor]:
    return read_tensors(directory) if layout.config == CONFIG else read_adapter(directory)


def _placed_by_plan(tensors: Mapping[str, FileTensor], plan: Mapping[str, Runs]) -> dict[FileTensor, Placement]:
    for name in plan.keys() | tensors.keys():
        tensor, runs = tensors.get(name), plan.get(name)
        if tensor is None or runs is None or (tensor.shape, tensor.dtype) != (runs.shape, runs.dtype):
            raise WeightsError(f"{name}: {_CHANGED}")
    return {tensor: plan[name] for name, tensor in tensors.items()}


def _placed_by_name(directory: Path, layout: Layout) -> dict[FileTensor, Placement]:
    tensors = find_tensors(directory, read_spec(directory, layout.task.value))
    item = ENGINE_DTYPES[layout.dtype]
    to: dict[FileTensor, Placement] = {}
    for place in layout.tensors:
        tensor = tensors.get(place.name)
        if tensor is None:
            raise WeightsError(f"{place.name}: {_CHANGED}")
        deal = Deal.of(place.name, tensor.shape, place.offset, layout.ranks, layout.weight_bytes)
        if deal.held(0, tensor.items) != place.nbytes // item:
            raise WeightsError(f"{place.name}: {_CHANGED}")
        to[tensor] = deal
    return to


def _await_stable_times(states: tuple[FileState, ...]) -> None:
    """Wait until a later change of the files is sure to show in their times: at most one SETTLED_NS, in the thread that
    fetches or loads, because within one tick of the file system's clock two changes have one time."""
    age_ns = time.time_ns() - max(max(state.modified_ns, state.changed_ns) for state in states)
    if 0 <= age_ns < SETTLED_NS:
        time.sleep((SETTLED_NS - age_ns) / 1e9)  # a file system's clock has no event to wait for
