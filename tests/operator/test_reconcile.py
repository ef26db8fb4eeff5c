"""From a pool to desired pods: exactly the config files that the processes read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from aegaeon_gateway.config import load_config as read_gateway_config
from aegaeon_operator.reconcile import (
    AttachedProbe,
    DesiredPod,
    HttpProbe,
    LocalSettings,
    PodRole,
    SocketProbe,
    reconcile,
)
from aegaeon_operator.spec import Pool, load_manifests
from aegaeon_scheduler.config import load_config as read_scheduler_config
from aegaeon_sidecar.config import read_config as read_sidecar_config

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart"
SETTINGS = LocalSettings(
    run_folder=Path("/scratch/aegaeon/q"),
    sockets=Path("/run/aegaeon/q"),
    segments=Path("/dev/shm/q"),
    python="/usr/bin/python3",
)
MODEL = {
    "max_model_len": 0,
    "ttft_s": 2.0,
    "tbt_s": 0.1,
    "tier": "standard",
    "weight": 1,
    "tool_calls": "",
    "reasoning": "",
    "adapters": [],
    "task": "",
    "matryoshka": False,
}


def quickstart() -> Pool:
    return load_manifests(QUICKSTART, Path("/models")).pools[0]


def pods(pool: Pool | None = None, settings: LocalSettings = SETTINGS) -> dict[str, DesiredPod]:
    return {pod.name: pod for pod in reconcile(pool or quickstart(), settings)}


def with_spec(pool: Pool, **changes: object) -> Pool:
    spec = pool.gpu_pool.spec.model_validate({**pool.gpu_pool.spec.model_dump(), **changes}, strict=False)
    return replace(pool, gpu_pool=pool.gpu_pool.model_copy(update={"spec": spec}))


def test_the_quickstart_is_a_scheduler_two_sidecars_and_a_gateway_in_this_order() -> None:
    assert [(pod.name, pod.role, pod.depends) for pod in pods().values()] == [
        ("scheduler", PodRole.SCHEDULER, ()),
        ("engine-0", PodRole.SIDECAR, ("scheduler",)),
        ("engine-1", PodRole.SIDECAR, ("scheduler",)),
        ("gateway", PodRole.GATEWAY, ("scheduler",)),
    ]


def test_the_schedulers_configuration_has_policy_models_and_objectives() -> None:
    pod = pods()["scheduler"]
    assert pod.argv == ("/usr/bin/python3", "-m", "aegaeon_scheduler", "--config", "/scratch/aegaeon/q/scheduler.json")
    assert pod.probe == SocketProbe(Path("/run/aegaeon/q/scheduler.sock"))
    assert pod.config == {
        "listen": "unix:/run/aegaeon/q/scheduler.sock",
        "ambient_egress": True,
        "admin_listen": "unix:/run/aegaeon/q/admin.sock",
        "pool": "quickstart",
        "policy": {"name": "slack", "min_stay_s": 0.5},
        "models": [
            {"name": name, "source": {"directory": f"/models/{name}"}, **MODEL}
            for name in ("llama", "mistral", "qwen2", "qwen3")
        ],
        "constants": None,
        "record": None,
        "heartbeat_timeout_s": 2,
        "hold_s": 30.0,
        "start_s": 0.0,
        "admission": "none",
        "prefill_chunk_tokens": 256,
        "metrics_listen": None,
    }


def test_threads_that_the_pool_names_are_all_that_an_engine_has() -> None:
    pool = with_spec(quickstart(), tuning={"threads": 3})
    pod = pods(pool)["engine-0"]
    assert pod.environment == {"OMP_NUM_THREADS": "3"}
    assert (pod.config["threads"], pod.config["engines"]) == (3, 0)


def test_a_sidecars_configuration_has_role_memory_and_scheduler_address() -> None:
    pool = with_spec(quickstart(), prefill={"replicas": 1}, decode={"replicas": 1})
    pod = pods(pool)["decode-0"]
    assert pod.argv[2] == "aegaeon_sidecar"
    assert pod.probe == AttachedProbe("unix:/run/aegaeon/q/scheduler.sock", "decode-0")
    assert pod.environment == {"OMP_NUM_THREADS": "1"}
    memory = quickstart().gpu_pool.spec.memory
    assert pod.config == {
        "instance": "decode-0",
        "node": "local",
        "role": "decode",
        "scheduler": "unix:/run/aegaeon/q/scheduler.sock",
        "backend": "torch",
        "device": "cpu",
        "ranks": 1,
        "dtype": "float32",
        "memory": {
            "device_bytes": memory.device_bytes,
            "outside_bytes": 688 << 20,
            "slab_bytes": 256 << 10,
            "host_kv_bytes": memory.host_kv,
            "host_cache_bytes": memory.host_model_cache,
            "stage_chunk_bytes": 4 << 20,
            "stage_depth": 4,
            "prefix_reuse": True,
        },
        "adapters": None,
        "disk": {},
        "sources": {"allowed": ["0.0.0.0/0", "::/0"], "ambient_credentials": True},
        "segments": "/dev/shm/q",
        "threads": 1,
        "engines": 4,  # two unified ones as well
        "max_batch": 16,
        "prefill_chunk_tokens": 256,
        "lease_s": 10.0,
        "heartbeat_s": 0.5,
        "drain_s": 0.0,
        "hub_cache": None,
    }


def test_the_gateways_configuration_has_its_listen_address() -> None:
    pod = pods()["gateway"]
    assert pod.probe == HttpProbe("127.0.0.1", 8000, "/health")
    assert pod.config == {
        "name": "gateway",
        "listen": "127.0.0.1:8000",
        "scheduler": "unix:/run/aegaeon/q/scheduler.sock",
        "sink": "unix:/run/aegaeon/q/sink.sock",
        "max_body_bytes": 16 << 20,
        "hub_cache": None,
        "fetched": "/scratch/aegaeon/q/tokenizers",
        "metrics_listen": "unix:/run/aegaeon/q/metrics.sock",
        "allowed_sources": ["0.0.0.0/0", "::/0"],
        "ambient_credentials": True,
        "access_log": False,
        "http": {"cors_origins": []},
        "hold_s": 30.0,
        "tenants": "/scratch/aegaeon/q/tenants.json",
        "prefix_scope": "tenant",
        "prefix_secret_file": "/scratch/aegaeon/q/prefix-secret",
    }


def test_the_command_line_overrides_the_manifest() -> None:
    settings = replace(
        SETTINGS, port=9001, record=Path("/tmp/r.log"), constants=Path("/c.json"), hub_cache=Path("/hub")
    )
    found = pods(settings=settings)
    assert found["gateway"].config["listen"] == "127.0.0.1:9001"
    assert found["gateway"].probe == HttpProbe("127.0.0.1", 9001, "/health")
    assert (found["scheduler"].config["record"], found["scheduler"].config["constants"]) == ("/tmp/r.log", "/c.json")
    assert found["engine-0"].config["hub_cache"] == "/hub"


def test_engines_of_every_role_take_gpus_in_order() -> None:
    pool = with_spec(
        quickstart(),
        accelerator={"device": "cuda:2", "dtype": "bfloat16"},
        engines={"replicas": 1},
        prefill={"replicas": 1},
        decode={"replicas": 2},
    )
    sidecars = [pod for pod in pods(pool).values() if pod.role is PodRole.SIDECAR]
    assert [(pod.config["instance"], pod.config["role"], pod.config["device"]) for pod in sidecars] == [
        ("engine-0", "unified", "cuda:2"),
        ("prefill-0", "prefill", "cuda:3"),
        ("decode-0", "decode", "cuda:4"),
        ("decode-1", "decode", "cuda:5"),
    ]


def test_engines_of_several_gpus_each_take_the_next_ones_and_share_models_over_them() -> None:
    pool = with_spec(quickstart(), accelerator={"device": "cuda:1", "count": 3}, engines={"replicas": 2})
    sidecars = [pod.config for pod in pods(pool).values() if pod.role is PodRole.SIDECAR]
    assert [(config["device"], config["ranks"]) for config in sidecars] == [("cuda:1", 3), ("cuda:4", 3)]


def test_engines_that_share_a_gpu_all_take_the_first_ones() -> None:
    pool = with_spec(
        quickstart(), accelerator={"device": "cuda:1", "count": 2}, prefill={"replicas": 1}, decode={"replicas": 2}
    )
    made = reconcile(pool, replace(SETTINGS, share_gpu=True))
    assert {pod.config["device"] for pod in made if pod.role is PodRole.SIDECAR} == {"cuda:1"}


def test_a_hub_model_keeps_its_revision(tmp_path: Path) -> None:
    text = (QUICKSTART / "modelpool.yaml").read_text("utf-8")
    hub = "{huggingFace: {repository: org/model, revision: v1}}"
    (tmp_path / "models.yaml").write_text(text.replace("{hostPath: qwen3}", hub), "utf-8")
    (tmp_path / "gpus.yaml").write_text((QUICKSTART / "gpupool.yaml").read_text("utf-8"), "utf-8")
    models = pods(load_manifests(tmp_path, tmp_path).pools[0])["scheduler"].config["models"]
    assert isinstance(models, list)
    assert models[3]["source"] == {"hub": {"repository": "org/model", "revision": "v1", "credentials_file": ""}}


READERS = {
    PodRole.SCHEDULER: read_scheduler_config,
    PodRole.SIDECAR: read_sidecar_config,
    PodRole.GATEWAY: read_gateway_config,
}


@pytest.mark.parametrize("name", ["scheduler", "engine-0", "engine-1", "gateway"])
def test_every_process_reads_the_config_that_is_written_for_it(tmp_path: Path, name: str) -> None:
    pod = pods()[name]
    file = tmp_path / "config.json"
    file.write_text(json.dumps(pod.config), "utf-8")
    assert READERS[pod.role](file) is not None


def test_reconciling_twice_gives_the_same_desired_state() -> None:
    assert reconcile(quickstart(), SETTINGS) == reconcile(quickstart(), SETTINGS)


def test_allowed_sources_are_configured_in_engines_and_gateway() -> None:
    allowed = ("huggingface.co", "*.hf.co")
    found = pods(with_spec(quickstart(), allowed_sources=allowed))
    assert found["engine-0"].config["sources"] == {"allowed": list(allowed), "ambient_credentials": True}
    assert found["gateway"].config["allowed_sources"] == list(allowed)
