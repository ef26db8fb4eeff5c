"""How each system is started, with the settings that its documentation recommends, and what it loses at a switch."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from benchmarks.peers.models import CONTEXT, NAMES
from benchmarks.peers.score import TBT_S, TTFT_S

ROOM = 2  # models at a time
_CORES = 2
_NO_LIMIT = 1000  # requests at a time: llama-swap answers the others with 429
_OURS_BYTES = {"deviceBytes": "272Mi", "slabSize": "1Mi", "hostModelCache": "768Mi", "hostKv": "256Mi"}


@dataclass(frozen=True, slots=True)
class Where:
    """`models`: their folder; `scratch`: for files of this run; `vllm`, `peers`: Pythons of the environments;
    `llama_swap`: the program, if there is one."""

    models: Path
    scratch: Path
    vllm: Path
    peers: Path
    llama_swap: Path | None


@dataclass(frozen=True, slots=True)
class Command:
    """What starts a system, its address, and what it calls a model."""

    argv: list[str]
    port: int
    environment: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=lambda: {name: name for name in NAMES})


@dataclass(frozen=True, slots=True)
class System:
    """`settings` and `loses` are printed."""

    name: str
    settings: str
    loses: str
    command: Callable[[Where], Command]


def _ours(backend: str, port: int) -> Callable[[Where], Command]:
    def command(where: Where) -> Command:
        folder = where.scratch / backend
        folder.mkdir(parents=True)
        api, named = "serving.aegaeon.io/v1alpha1", {"name": "peers"}
        pool: dict[str, Any] = {
            "backend": backend,
            "engines": {"replicas": 1},
            "memory": _OURS_BYTES,
            "scheduling": {"policy": "slack", "hold": "120s"},
            "tuning": {"maxBatch": 16, "prefillChunkTokens": 512},
        }
        slo = {"ttft": f"{1000 * TTFT_S:.0f}ms", "tbt": f"{1000 * TBT_S:.0f}ms"}
        served = [{"name": name, "source": {"hostPath": str(where.models / name)}, "slo": slo} for name in NAMES]
        models: dict[str, Any] = {"gpuPoolRef": named, "gateway": {"port": port}, "models": served}
        for kind, spec in (("GpuPool", pool), ("ModelPool", models)):
            document = {"apiVersion": api, "kind": kind, "metadata": named, "spec": spec}
            (folder / f"{kind}.yaml").write_text(yaml.safe_dump(document), "utf-8")
        python = where.vllm if backend == "vllm" else Path(sys.executable)
        return Command([str(python.with_name("aegaeon")), "up", "-f", str(folder)], port)

    return command


def _transformers(where: Where) -> Command:
    argv = [str(where.peers.with_name("transformers")), "serve", "--port", "8702", "--device", "cpu"]
    argv += ["--dtype", "float32", "--model-timeout", "10"]
    names = {name: str(where.models / name) for name in NAMES}
    return Command(argv, 8702, {"OMP_NUM_THREADS": str(_CORES), "HF_HUB_OFFLINE": "1"}, names)


def _llama_models(where: Where, names: tuple[str, ...], threads: int) -> list[dict[str, Any]]:
    shared = {"n_ctx": CONTEXT, "n_threads": threads, "n_threads_batch": threads, "n_batch": 512, "verbose": False}
    return [{"model": str(where.models / name / "model.gguf"), "model_alias": name, **shared} for name in names]


def _llama(where: Where) -> Command:
    config = where.scratch / "llama.json"
    settings = {"port": 8703, "interrupt_requests": False, "models": _llama_models(where, NAMES, _CORES)}
    config.write_text(json.dumps(settings), "utf-8")
    return Command([str(where.peers), "-m", "llama_cpp.server", "--config_file", str(config)], 8703)


def _on_demand(where: Where, port: int, models: dict[str, Any]) -> list[str]:
    logs = where.scratch / f"on-demand-{port}"
    logs.mkdir()
    config = logs / "config.json"
    config.write_text(json.dumps({"port": port, "slots": ROOM, "logs": str(logs), "models": models}), "utf-8")
    return [sys.executable, "-m", "benchmarks.peers.on_demand", str(config)]


def _llama_processes(where: Where) -> dict[str, Any]:
    models = {}
    for port, name in enumerate(NAMES, 8710):
        config = where.scratch / f"{name}.json"
        served = _llama_models(where, (name,), _CORES // ROOM)
        config.write_text(json.dumps({"port": port, "interrupt_requests": False, "models": served}), "utf-8")
        argv = [str(where.peers), "-m", "llama_cpp.server", "--config_file", str(config)]
        models[name] = {"argv": argv, "port": port, "ready": "/v1/models"}
    return models


def _llama_on_demand(where: Where) -> Command:
    return Command(_on_demand(where, 8704, _llama_processes(where)), 8704)


def _llama_swap(where: Where) -> Command:
    """Any two models at a time: its `matrix`, which takes away as few as it can."""
    models = {
        name: {
            "cmd": shlex.join(one["argv"]),
            "proxy": f"http://127.0.0.1:{one['port']}",
            "checkEndpoint": one["ready"],
            "concurrencyLimit": _NO_LIMIT,
        }
        for name, one in _llama_processes(where).items()
    }
    any_of = f"({' | '.join(NAMES)})"
    matrix = {"sets": {"room": " & ".join([any_of] * ROOM)}}
    router = {"use": "matrix", "settings": {"matrix": matrix}}
    config = where.scratch / "llama-swap.yaml"
    config.write_text(yaml.safe_dump({"models": models, "routing": {"router": router}}), "utf-8")
    return Command([str(where.llama_swap), "--config", str(config), "--listen", "127.0.0.1:8706"], 8706)


def _vllm_processes(where: Where) -> Command:
    models = {}
    for port, name in enumerate(NAMES, 8720):
        argv = [str(where.vllm), "-m", "vllm.entrypoints.openai.api_server", "--model", str(where.models / name)]
        argv += ["--served-model-name", name, "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32"]
        argv += ["--max-model-len", str(CONTEXT), "--max-num-seqs", "16", "--enforce-eager"]
        models[name] = {"argv": argv, "port": port, "ready": "/health"}
    environment = {
        "OMP_NUM_THREADS": str(_CORES // ROOM),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    return Command(_on_demand(where, 8705, models), 8705, environment)


_OURS = f"one engine, policy slack, {_OURS_BYTES['deviceBytes']} for weights and KV cache"
_KEPT = "nothing: KV cache is swapped to host memory, prefixes stay"
_PROCESSES = f"{ROOM} processes at a time, {_CORES // ROOM} thread each"
_LOST = "the process: import, weights, KV cache, prefix; a model that is asked for waits for the victim's requests"
_OLDEST = "the one asked for longest ago makes room"
_SYSTEMS = (
    System("aegaeon, vllm", _OURS, _KEPT, _ours("vllm", 8700)),
    System("aegaeon, torch", _OURS, _KEPT, _ours("torch", 8701)),
    System(
        "transformers serve",
        f"{_CORES} threads, --model-timeout 10: it bounds no number of models, and unloads what is idle for 10 s",
        "an unloaded model is read from its files again; there is no prefix cache between requests",
        _transformers,
    ),
    System(
        "llama-cpp-python server",
        f"eight models in its config, of which it holds one at a time; {_CORES} threads, interrupt_requests off",
        "weights (mapped anew), KV cache and prefix; requests run one after the other",
        _llama,
    ),
    System(
        "llama-swap, llama-cpp-python",
        f"{_PROCESSES}; its matrix router with all pairs of models",
        _LOST,
        _llama_swap,
    ),
    System(
        "llama-cpp-python, a process per model",
        f"{_PROCESSES}; {_OLDEST}; stands for llama-swap, which is not installed",
        _LOST,
        _llama_on_demand,
    ),
    System(
        "vLLM, a process per model",
        f"{_PROCESSES}; {_OLDEST}; --enforce-eager (compiling would make each start longer), prefix caching on, "
        "1 GiB of KV cache; sleep mode needs a GPU",
        _LOST,
        _vllm_processes,
    ),
)


def systems(where: Where) -> tuple[System, ...]:
    """Those that can run here: llama-swap itself, or what stands for it."""
    absent = _llama_on_demand if where.llama_swap else _llama_swap
    return tuple(system for system in _SYSTEMS if system.command is not absent)
