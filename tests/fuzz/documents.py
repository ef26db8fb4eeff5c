"""Documents that people write: manifests of tenant teams and of the platform, the file of tenants."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from fuzz.shape import Draw, changed, json_bytes, json_input, raw
from fuzz.target import One, Target


def _tenants(home: Path) -> One:
    from aegaeon_gateway.errors import ConfigError, UnauthorizedError
    from aegaeon_gateway.tenancy.file import TenantsFile

    (home / "key").write_text("sk-a\nsk-b\n")
    documents = [
        {
            "tenants": [
                {"name": "red", "models": ["m"], "key_sha256": ["0" * 64], "quota": {"requests_per_minute": 5}},
                {"name": "blue", "models": ["m", "n"], "key_files": ["key"]},
            ],
            "open_models": ["o"],
            "model_quotas": {"m": {"tokens_per_minute": 100}},
        }
    ]
    words = ("tenants", "name", "models", "key_sha256", "key_files", "quota", "open_models", "model_quotas", "key")

    def feed(data: bytes) -> None:
        (home / "tenants.json").write_bytes(json_input(data, documents, words))
        try:
            directory = TenantsFile(home / "tenants.json").current()
        except ConfigError:
            return
        with contextlib.suppress(UnauthorizedError):
            directory.identify("Bearer \udcff")

    return feed


def _manifest_documents() -> list[Any]:
    import yaml

    quickstart = Path(__file__).parents[2] / "examples" / "quickstart"
    return [[yaml.safe_load((quickstart / name).read_text("utf-8")) for name in ("gpupool.yaml", "modelpool.yaml")]]


def _manifests(home: Path) -> One:
    from aegaeon_operator.errors import ManifestError
    from aegaeon_operator.spec import load_manifests

    documents = _manifest_documents()
    documents[0][1]["spec"]["models"] += [
        {
            "name": "h",
            "source": {"http": {"url": "http://a/b", "credentialsFile": "/x"}},
            "tier": "batch",
            "weight": 2,
        },
        {"name": "s", "source": {"s3": {"bucket": "b", "prefix": "p", "endpoint": "http://a"}}, "maxModelLen": 5},
        {"name": "g", "source": {"huggingFace": {"repository": "a/b", "revision": "main"}}},
    ]
    documents[0][1]["spec"]["tenants"] = [{"name": "t", "keyFile": "./k", "models": ["llama"], "quota": {}}]
    words = (
        "name",
        "replicas",
        "hostPath",
        "memory",
        "models",
        "source",
        "http",
        "url",
        "1Mi",
        "10s",
        "cpu",
        "spec",
    )

    def feed(data: bytes) -> None:
        body = raw(data)
        if body is None:
            made = changed(Draw(data[1:]), documents, words)
            parts = made if isinstance(made, list) else [made]
            body = b"\n---\n".join(map(json_bytes, parts))  # JSON is YAML
        (home / "pool.yaml").write_bytes(body)
        try:
            load_manifests(home, home)
        except ManifestError as error:
            assert error.problems, "refused without a reason"
            named = (f"{home}/pool.yaml", f"{home}: has no GpuPool")
            assert all(problem.startswith(named) for problem in error.problems), error.problems

    return feed


TARGETS = (
    Target("tenants_file", _tenants, ("aegaeon_gateway",)),
    Target("manifests", _manifests, ("aegaeon_operator.spec",)),
)
