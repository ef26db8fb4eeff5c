"""Configuration of the three processes from a pool's spec, the same on one machine and in a cluster.

The config files are the contract with the processes (docs/design/processes.md). Callers add addresses and folders.
"""

from __future__ import annotations

from collections.abc import Iterable

from aegaeon_operator.reconcile.pods import Json
from aegaeon_operator.spec.batches import BatchStore
from aegaeon_operator.spec.engines import MAX_GRAPHS, AdapterRoom, EngineTuning, Scheduling
from aegaeon_operator.spec.kubernetes import TOKENIZER_BYTES
from aegaeon_operator.spec.overhead import outside_bytes
from aegaeon_operator.spec.resources import GpuPoolSpec, ModelPool, Quota, ServedModel, Source

_MAX_BODY_BYTES = 16 << 20
_HEARTBEAT_S = 0.5
_HEARTBEAT_TIMEOUT_S = 2


def scheduler_settings(name: str, spec: GpuPoolSpec, model_pools: Iterable[ModelPool]) -> Json:
    """Return the scheduler's configuration without addresses and files."""
    scheduling = spec.scheduling
    return {
        "pool": name,
        "policy": policy_entry(scheduling),
        "models": [model_entry(model, pool.prefix_share) for pool in model_pools for model in pool.spec.models],
        "heartbeat_timeout_s": _HEARTBEAT_TIMEOUT_S,
        "hold_s": scheduling.hold,
        "start_s": spec.hold_start_s,
        "admission": scheduling.admission,
        **({} if scheduling.kv_gate is None else {"kv_gate": scheduling.kv_gate / 100}),
        "prefill_chunk_tokens": spec.tuning.prefill_chunk_tokens,
        **_pooled_tokens(spec.tuning),
        **({"otlp_endpoint": spec.tracing.endpoint} if spec.tracing else {}),
    }


def policy_entry(scheduling: Scheduling) -> Json:
    """Return the policy with its own settings only; the scheduler refuses others."""
    if scheduling.policy == "paper":
        return {"name": "paper", "q_max_s": scheduling.q_max, "max_gpsize": scheduling.max_group_size}
    if scheduling.policy == "prism":
        return {"name": "prism"}
    percent = scheduling.headroom_percent
    chosen = {
        "quantum_steps": scheduling.quantum_steps,
        "part_s": scheduling.prompt_part,
        "late_slack_s": scheduling.late_slack,
        "headroom": None if percent is None else percent / 100,
        "warm": scheduling.warm,
    }
    set_here = {name: value for name, value in chosen.items() if value is not None}
    return {"name": "slack", "min_stay_s": scheduling.min_stay, **set_here}


def model_entry(model: ServedModel, prefix_share: str) -> Json:
    """Return a model's entry in the scheduler's catalog. `prefix_share`: of its ModelPool."""
    return {
        "name": model.name,
        "source": source_entry(model.source),
        "max_model_len": model.max_model_len or 0,
        "ttft_s": model.slo.ttft,
        "tbt_s": model.slo.tbt,
        "tier": model.tier,
        "weight": model.weight,
        "tool_calls": model.tool_calls or "",
        "reasoning": model.reasoning or "",
        "adapters": [{"name": adapter.name, "source": source_entry(adapter.source)} for adapter in model.adapters],
        "task": model.task or "",
        "matryoshka": model.matryoshka,
        **({"prefix_share": prefix_share} if prefix_share else {}),
        **({"public_prompts": list(model.public_prompts)} if model.public_prompts else {}),
    }


def source_entry(source: Source) -> Json:
    """Return the location of files; credentials are files, too."""
    if source.hugging_face:
        return {"hub": source.hugging_face.model_dump(exclude={"credentials_secret_ref"})}
    if source.s3:
        return {"s3": source.s3.model_dump(exclude={"credentials_secret_ref"})}
    if source.http:
        return {"http": source.http.model_dump(exclude={"credentials_secret_ref"})}
    return {"directory": source.host_path}


def sidecar_settings(role: str, spec: GpuPoolSpec) -> Json:
    """Return a sidecar's configuration without addresses, folders and name."""
    memory, tuning = spec.memory, spec.tuning
    return {
        "role": role,
        "backend": spec.backend,
        "ranks": spec.accelerator.count,
        "dtype": spec.accelerator.dtype,
        "memory": {
            "device_bytes": memory.device_bytes,
            "outside_bytes": outside_bytes(spec),
            "slab_bytes": memory.slab_size,
            "host_kv_bytes": memory.host_kv,
            "host_cache_bytes": memory.host_model_cache,
            "stage_chunk_bytes": memory.stage.chunk,
            "stage_depth": memory.stage.depth,
            "prefix_reuse": memory.prefix_reuse,
        },
        "adapters": adapter_entry(spec.adapters) if spec.adapters else None,
        "disk": {"folder": memory.disk.path, "budget_bytes": memory.disk.size} if memory.disk else {},
        "sources": {"allowed": list(spec.allowed_sources)},
        "threads": spec.threads,
        "max_batch": spec.max_batch,
        # Engines of the previous release refuse this key.
        **({"max_graphs": tuning.max_graphs} if tuning.max_graphs != MAX_GRAPHS else {}),
        "prefill_chunk_tokens": tuning.prefill_chunk_tokens,
        **_pooled_tokens(tuning),
        "lease_s": tuning.lease,
        "heartbeat_s": _HEARTBEAT_S,
    }


def _pooled_tokens(tuning: EngineTuning) -> Json:
    """Return a setting that processes of the previous release refuse, where the manifest has it."""
    return {} if tuning.max_pooled_tokens is None else {"max_pooled_tokens": tuning.max_pooled_tokens}


def adapter_entry(adapters: AdapterRoom) -> Json:
    """Return the memory and limits for adapters."""
    return {"max_rank": adapters.max_rank, "max_loaded": adapters.max_loaded, "device_bytes": adapters.memory}


def gateway_settings(spec: GpuPoolSpec) -> Json:
    """Return the gateway's configuration without addresses and folders."""
    tokenizer_bytes = spec.gateway.tokenizer_memory
    return {
        "max_body_bytes": _MAX_BODY_BYTES,
        "hold_s": spec.scheduling.hold,
        "allowed_sources": list(spec.allowed_sources),
        "access_log": spec.gateway.access_log,
        "prefix_scope": spec.memory.prefix_scope,
        # Gateways of the previous release refuse these keys.
        **({"strict": True} if spec.gateway.strict else {}),
        **({"tokenizer_bytes": tokenizer_bytes} if tokenizer_bytes != TOKENIZER_BYTES else {}),
        "http": {"cors_origins": list(spec.gateway.cors_origins)},
        **({"otlp_endpoint": spec.tracing.endpoint, "trace_ratio": spec.tracing.percent / 100} if spec.tracing else {}),
    }


def batches_entry(store: BatchStore, folder: str, credentials: str) -> Json:
    """Return the storage of files and batches; `folder` and the `credentials` file are paths of the gateway."""
    bounds: Json = {"keep_s": store.keep, "tenant_bytes": store.tenant_size, "in_flight": store.in_flight}
    if store.s3 is None:
        return {**bounds, "folder": folder}
    place = store.s3.model_dump(exclude={"credentials_secret_ref", "credentials_file"})
    return {**bounds, "s3": {**place, "credentials_file": credentials}}


def quota_entry(quota: Quota) -> Json:
    """Return the limits for a minute."""
    return {"requests_per_minute": quota.requests_per_minute, "tokens_per_minute": quota.tokens_per_minute}
