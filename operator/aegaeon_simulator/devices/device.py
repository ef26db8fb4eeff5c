"""Durations of a modelled device's work: constants from a file; shipped devices are found by name.

A file has the form of devices/*.json, or that of `aegaeon calibrate`; models then have the sizes of their kind.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from aegaeon_scheduler.core.config import LatencyConstants
from aegaeon_simulator.errors import DeviceError

_LATENCY = ("a", "b", "c", "p0", "p1", "p2", "floor")
_OPTIONAL = (
    "change_s",
    "first_s",
    "load_stall_bytes_per_s",
    "tick_s",
    "resample",
    "kv_load_s_per_token",
    "step_batch",
)
_SIZES = "h800-policy"  # whose sizes a calibrated model of a known kind has
_LONGEST = 1 << 20


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of model on the device. Bytes; `latency` in seconds."""

    name: str
    weight_bytes: int
    kv_bytes_per_token: int
    latency: LatencyConstants
    context_tokens: int = _LONGEST
    task: str = ""  # of a model that generates nothing: `embed`, as a sidecar reports it


@dataclass(frozen=True, slots=True)
class Charge:
    """Costs of one policy only. `load_tax`: share of the device while it loads; `nodes`: models bound to one each."""

    load_tax: float = 0.0
    nodes: int = 1


@dataclass(frozen=True, slots=True)
class Device:
    """A device. Bytes, seconds, bytes per second; `derived` says which constants are not measured."""

    name: str
    source: str
    licence: str
    derived: tuple[str, ...]
    kinds: Mapping[str, Kind]
    charges: Mapping[str, Charge]
    model_bytes: int  # for weights and KV
    slab_bytes: int = 32 << 20
    block_tokens: int = 16
    max_batch: int = 256
    host_kv_bytes: int = 256_000_000_000
    one_link: bool = True  # weights and KV, in and out, one after the other
    node_bytes_per_s: float = 0.0  # of a node's host memory, for all its devices; 0: no limit
    gpus_per_node: int = 8  # that is devices, of one GPU or of several
    gpus: int = 1  # that make up one device (a tensor-parallel group)
    host_cache_bytes: int = 0  # of a node, for weights; 0: every model is in host memory
    disk_bytes_per_s: float = 7e9  # of a node, for weights that are not in host memory
    change_s: float = 0.0  # at each change of the running model
    first_s: float = 0.0  # at a model's first decode step on an engine: graphs are captured, kernels compiled
    load_stall_bytes_per_s: float = 0.0  # a load holds the device up for its bytes at this rate; 0: not at all
    kv_share: float = 1.0  # of what weights leave of kv_of_bytes, for KV, where a policy has one model at a time
    kv_of_bytes: int = 0  # 0: model_bytes
    tick_s: float = 0.0  # baselines cut seconds to whole ticks
    resample: bool = False  # lengths are resampled from the trace's own pairs
    kv_load_s_per_token: float = 0.0  # at each decode turn of the artifact's policy
    step_batch: int = 0  # what baselines put into the batch term of every step; 0: the batch

    def kind(self, name: str) -> Kind:
        """The kind of this name. Raises DeviceError."""
        kind = self.kinds.get(name)
        if kind is None:
            known = ", ".join(sorted(self.kinds))
            raise DeviceError(
                f"device {self.name} has no constants of {name}, but of {known}; use models of these kinds, "
                f"or another --device"
            )
        if kind.weight_bytes > self.model_bytes:
            raise DeviceError(
                f"{name} has {kind.weight_bytes / 1e9:.1f} GB of weights and fits no {self.name}, which has "
                f"{self.model_bytes / 1e9:.1f} GB for models; omit the model or use another --device"
            )
        return kind

    def holds_both(self, first: Kind, second: Kind) -> bool:
        """True when the weights of two models fit side by side."""
        return first.weight_bytes + second.weight_bytes <= self.model_bytes

    def kv_tokens(self, kind: Kind) -> int:
        """Tokens of KV that fit beside the weights of this kind alone."""
        room = (self.kv_of_bytes or self.model_bytes) - kind.weight_bytes
        return int(room * self.kv_share / kind.kv_bytes_per_token)

    def cut_to_ticks(self, seconds: float) -> float:
        """Seconds, cut to whole ticks if the device has ticks."""
        return int(seconds / self.tick_s) * self.tick_s if self.tick_s else seconds

    def load_s(self, kind: Kind) -> float:
        """Seconds to load the weights from host memory."""
        return self.cut_to_ticks(kind.weight_bytes / kind.latency.load_bytes_per_s)

    def prefill_s(self, kind: Kind, lengths: Iterable[int]) -> float:
        """Seconds of one batch of prompts (Eq. 5 with a floor)."""
        tokens = squares = 0
        for length in lengths:
            tokens += length
            squares += length * length
        k = kind.latency
        return self.cut_to_ticks(max(k.floor, k.p0 + k.p1 * tokens + k.p2 * squares))

    def step_s(self, kind: Kind, context_tokens: int, batch: int) -> float:
        """Seconds of one decode step (Eq. 6 with a term in the batch)."""
        return self.cut_to_ticks(self.estimated_step_s(kind, context_tokens, batch))

    def estimated_step_s(self, kind: Kind, context_tokens: int, batch: int) -> float:
        """Seconds of one decode step, not cut to ticks."""
        k = kind.latency
        return k.a + k.b * context_tokens + k.c * (self.step_batch or batch)


def shipped() -> list[str]:
    """Names of the shipped devices."""
    folder = resources.files("aegaeon_simulator") / "devices"
    return sorted(entry.name.removesuffix(".json") for entry in folder.iterdir() if entry.name.endswith(".json"))


def read_device(name: str) -> Device:
    """A shipped device by its name, else one from a file. Raises DeviceError with the problem and the remedy."""
    if name in shipped():
        text = (resources.files("aegaeon_simulator") / "devices" / f"{name}.json").read_text("utf-8")
    else:
        try:
            text = Path(name).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            known = ", ".join(shipped())
            raise DeviceError(f"--device {name}: neither a readable file nor one of {known} ({error})") from error
    try:
        content = json.loads(text)
        return _calibrated(name, content) if "constants" in content else _device(content)
    except json.JSONDecodeError as error:
        raise DeviceError(f"{name}:{error.lineno}: not JSON ({error.msg})") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DeviceError(f"{name}: not a file of device constants; {error!r} is missing or of a wrong type") from error


def _device(c: dict[str, Any]) -> Device:
    gpu, link = dict(c["gpu"]), dict(c["link"])
    load, kv = float(link.pop("load_bytes_per_s")), float(link.pop("kv_bytes_per_s"))
    context = int(gpu.pop("context_tokens", _LONGEST))
    kinds = {name: _kind(name, k, load, kv, context) for name, k in c["kinds"].items()}
    charges = {policy: Charge(**charge) for policy, charge in c.get("only", {}).items()}
    rest = {k: c[k] for k in _OPTIONAL if k in c}
    return Device(c["name"], c["source"], c["licence"], tuple(c["derived"]), kinds, charges, **gpu, **link, **rest)


def _kind(name: str, k: dict[str, Any], load: float, kv: float, context: int) -> Kind:
    latency = LatencyConstants(
        **{field: float(k[field]) for field in _LATENCY},
        load_bytes_per_s=float(k.get("load_bytes_per_s", load)),
        kv_bytes_per_s=float(k.get("kv_bytes_per_s", kv)),
    )
    return Kind(
        name,
        int(k["weight_bytes"]),
        int(k["kv_bytes_per_token"]),
        latency,
        int(k.get("context_tokens", context)),
        str(k.get("task", "")),
    )


def _calibrated(name: str, c: dict[str, Any]) -> Device:
    """A device from a constants file: its models are the kinds; sizes come from the file, else from their kind."""
    like = read_device(_SIZES)
    kinds, derived = {}, [str(line) for line in c.get("derived", ())]
    for entry in c["constants"]:
        k, model = dict(entry), str(entry["model"])
        sizes = like.kinds.get(model)
        if sizes is None and not {"weight_bytes", "kv_bytes_per_token"} <= k.keys():
            raise DeviceError(f"{name}: the size of {model} is not known; add its weight_bytes and kv_bytes_per_token")
        if sizes is not None and "weight_bytes" not in k:
            k |= {"weight_bytes": sizes.weight_bytes, "kv_bytes_per_token": sizes.kv_bytes_per_token}
            derived.append(f"{model}: sizes are those of {_SIZES}, not of this file")
        kinds[model] = _kind(model, k, float(k["load_bytes_per_s"]), float(k["kv_bytes_per_s"]), _LONGEST)
    if not kinds:
        raise DeviceError(f"{name}: contains no constants; make them with `aegaeon calibrate`")
    gpu = c.get("gpu", {})
    if "model_bytes" not in gpu:
        gpu = {**gpu, "model_bytes": like.model_bytes}
        derived.append(f"model_bytes: {like.model_bytes / 1e9:g} GB of {_SIZES}, not of this file")
    return Device(name, "aegaeon calibrate", "yours", tuple(derived), kinds, {}, **gpu)
