"""A model as the memory sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from aegaeon_proto.pooling import Task
from aegaeon_sidecar.models.runs import Ints, Runs

Bake = Callable[[int], None]
CONFIG = "config.json"
ADAPTER_CONFIG = "adapter_config.json"


class Placement(Protocol):
    """The places of one tensor's items in an image. `raw`: as they are, whatever the image's dtype."""

    @property
    def raw(self) -> bool: ...

    def pieces(self, first: int, last: int, item: int) -> tuple[Ints, Ints, Ints]:
        """Items [first, last) of the file: where each piece begins and ends, and its byte of an image of such items."""
        ...

    def covered(self, items: int, item: int) -> tuple[Ints, Ints]:
        """The image's bytes that a tensor of so many items is written to: where each piece begins, and its length."""
        ...


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """The place of one tensor in its model's range: byte offset (256-aligned), bytes, and its name in the files."""

    name: str
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Proof:
    """A property that must hold before a model is served, and is tested. `run` raises ModelError when it does not hold;
    `key`: names everything the outcome depends on, so that it is not tested again where it has held."""

    key: str
    run: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Layout:
    """A model as the memory sees it: bytes of weights, the places of its tensors, and the shape of its KV cache.

    `files`: those that hold the weights, in order. `vocab_size`: token ids are below it; 0 where that is not known.
    Where an engine has several ranks, everything is as each of them has it: a part of the weights, at the same places,
    and a part of every block.

    `dtype`: of floating-point weights. `plan`: where each tensor of the files goes, None: by the names in `tensors`.
    `bake` writes the image into an open file where its bytes are not those of the files: the plan places nothing then.
    `made_by`: what else the bytes of the image depend on. `task`: what the model is for. `config`: the file that says
    what the tensors are for; of an adapter, which has no KV cache, ADAPTER_CONFIG. `proof`: None where there is none to
    be had. `built`: what its backend made of
    the files when it described them, and registers: it goes with a model that is never registered.
    """

    weight_bytes: int
    tensors: tuple[TensorPlace, ...]
    kv_shape: str
    kv_block_bytes: int
    kv_block_tokens: int
    max_model_len: int
    files: tuple[Path, ...]
    ranks: int = 1
    vocab_size: int = 0
    dtype: str = "float32"
    plan: Mapping[str, Runs] | None = None
    bake: Bake | None = None
    made_by: str = ""
    config: str = CONFIG
    task: Task = Task.GENERATE
    proof: Proof | None = field(default=None, compare=False, repr=False)
    built: object = field(default=None, compare=False, repr=False)

    @property
    def image_bytes(self) -> int:
        """Bytes of an image, in which all ranks' parts follow each other."""
        return self.ranks * self.weight_bytes

    @property
    def pools(self) -> bool:
        """True for a pooling model, which generates nothing."""
        return self.task is not Task.GENERATE

    @property
    def streams(self) -> bool:
        """True when a load can read the files straight into slabs; else it goes through an image in the host cache."""
        return self.ranks == 1 and self.bake is None
