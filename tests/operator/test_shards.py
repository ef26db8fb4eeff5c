"""Models and tenants lie in several Secrets: no namespace fills them for the others, and growth restarts nothing."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from operator_api import api_server
from operator_memory import At, Memory
from operator_objects import by_key, condition, entry, gpu_pool, model_pool, observed
from operator_world import OperatorWorld

from aegaeon_operator.kube.client import Cluster
from aegaeon_operator.reconcile.cluster.applied_secrets import AppliedSecrets
from aegaeon_operator.reconcile.cluster.desired import Desired, desired
from aegaeon_operator.reconcile.cluster.facts import ChildKey
from aegaeon_operator.reconcile.cluster.secret_files import Part, config_files, least_characters
from aegaeon_operator.reconcile.cluster.shards import NAMESPACE_BYTES, SECRET_BYTES, SHARD_BYTES, SHARDS, Shards
from aegaeon_scheduler.config import SchedulerConfig, load_config

Json = dict[str, Any]
WHYS = ("split it", "would need", "does not fit")
POOL = gpu_pool(allowedNamespaces=["greedy", "quiet"])


def greedy(number: int) -> Json:
    """512 models with names of 50 characters, which ten tenants may all use."""
    names = [f"m-{number}-{at:04d}-{'x' * 41}" for at in range(512)]
    tenants = [{"name": f"t{tenant}", "keySecretRef": {"name": "keys", "key": f"t{tenant}"}} for tenant in range(10)]
    return model_pool(f"greedy-{number}", *names, namespace="greedy", created=number, tenants=tenants)


def small(name: str = "small", folder: str = "one", namespace: str = "quiet") -> Json:
    return model_pool(name, models=[{"name": name, "source": {"hostPath": folder}}], namespace=namespace, created=50)


def mounted(secrets: Iterable[Json], deployment: Json, folder: Path) -> Path:
    """The configuration of a scheduler's pod as the kubelet would make it."""
    (volume,) = (each for each in deployment["spec"]["template"]["spec"]["volumes"] if each["name"] == "config")
    data = {secret["metadata"]["name"]: secret["data"] for secret in secrets}
    for source in (projected["secret"] for projected in volume["projected"]["sources"]):
        assert source["name"] in data or source["optional"]
        for item in source["items"] if source["name"] in data else ():
            file = folder / item["path"]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(base64.b64decode(data[source["name"]][item["key"]]))
    return folder / "scheduler.json"


def read(state: Desired, folder: Path) -> SchedulerConfig:
    manifests = by_key(state.manifests)
    secrets = [manifest for manifest in state.manifests if manifest["kind"] == "Secret"]
    return load_config(mounted(secrets, manifests[ChildKey("Deployment", "infra", "pool-scheduler")], folder), "test")


@asynccontextmanager
async def looks(memory: Memory) -> AsyncIterator[Any]:
    """Looks at the pool of an operator that was just started."""
    async with api_server(memory.answer) as api:
        yield lambda: OperatorWorld(memory, Cluster(api)).look()


def accepted(memory: Memory, namespace: str, name: str) -> Json:
    return condition(memory.objects[At("ModelPool", namespace, name)], "Accepted")


async def test_a_namespace_that_takes_all_it_can_leaves_the_others_room(tmp_path: Path) -> None:
    memory = Memory()
    keys = {f"t{at}": base64.b64encode(f"key-of-greedy-tenant-{at}".encode()).decode() for at in range(10)}
    head = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys", "namespace": "greedy"}}
    for body in (POOL, {**head, "data": keys}, *map(greedy, range(5)), small()):
        memory.put(body)
    async with looks(memory) as look:
        await look()
        states = [accepted(memory, "greedy", f"greedy-{number}") for number in range(5)]
        assert [state["reason"] for state in states] == ["Accepted"] * 4 + ["NoRoom"]
        assert "namespace greedy would need" in states[4]["message"]
        memory.put(small(folder="two"))
        await look()
    assert accepted(memory, "quiet", "small")["reason"] == "Accepted"
    secrets = [body for at, body in memory.objects.items() if at.kind == "Secret" and at.namespace == "infra"]
    deployment = memory.objects[At("Deployment", "infra", "pool-scheduler")]
    config = load_config(mounted(secrets, deployment, tmp_path), "test")
    models = {model.name: model.source.directory for model in config.models}
    assert models["small"] == "/srv/models/two"
    assert len(models) == 4 * 512 + 1


def test_a_scheduler_reads_what_the_operator_says(tmp_path: Path) -> None:
    tenants = [{"name": "acme", "keySecretRef": {"name": "keys", "key": "acme"}, "quota": {"requestsPerMinute": 5}}]
    pools = [model_pool(f"p{at}", f"model-{at}", created=at, tenants=tenants) for at in range(20)]
    state = desired(observed(POOL, *pools, small(), secrets={("infra", "keys"): {"acme": "key-of-the-tenant-acme"}}))
    config = read(state, tmp_path)
    assert [each.name for each in config.models] == [each["name"] for each in state.catalog]
    assert {each.created_s % 60 for each in config.models} == {*range(20), 50}, "its ModelPool's creation"
    assert config.tenants == state.tenants
    assert state.tenants is not None
    (acme,) = state.tenants["tenants"]
    assert acme["models"] == sorted(f"model-{at}" for at in range(20))
    assert len(acme["key_sha256"]) == 1
    assert state.tenants["open_models"] == ["small"]
    assert len([each for each in state.manifests if each["metadata"]["name"].startswith("pool-models-")]) > 1


def test_releases_beside_each_other(tmp_path: Path) -> None:
    state = desired(observed(POOL, small("one"), small("two")))
    wants = [each["name"] for each in state.catalog]
    config = read(state, tmp_path / "new")
    (tmp_path / "new/scheduler.d").rename(tmp_path / "hidden")
    assert [each.name for each in config.models] == wants
    before = load_config(tmp_path / "new/scheduler.json", "test")  # a scheduler or an operator of the release before
    assert [each.name for each in before.models] == wants
    assert before.tenants == state.tenants


def test_models_of_many_pools_with_large_shared_tenants_are_in_the_file_of_the_release_before() -> None:
    """Each part repeats the tenants, and the file has them once."""
    models = [{"name": f"m{number}", "created_s": 1} for number in range(100)]
    text = "x" * (SECRET_BYTES // 50)
    parts = [Part({"models": [model]}, text, least_characters([model])) for model in models]
    files = config_files({"scheduler": {}, "standby": {}}, {"models": models, "tenants": []}, parts)
    assert [model["name"] for model in json.loads(files["scheduler.json"])["models"]] == [f"m{n}" for n in range(100)]
    large = [{"name": f"m{number}", "source": text} for number in range(100)]
    parts = [Part({"models": [model]}, text, least_characters([model])) for model in large]
    assert (
        config_files({"scheduler": {}, "standby": {}}, {"models": large, "tenants": []}, parts)["scheduler.json"]
        == "{}"
    )


def test_one_more_restarts_nothing_and_moves_nothing() -> None:
    def manifests(count: int) -> dict[ChildKey, Json]:
        pools = [model_pool(f"p{at}", f"model-{at}", created=at) for at in range(count)]
        return by_key(desired(observed(POOL, *pools)).manifests)

    before, after = manifests(40), manifests(41)
    changed = {key.name for key in after if after[key] != before.get(key)}
    assert len(changed) == 2
    assert "pool-config" in changed  # what the release before reads
    assert {name[:-1] for name in changed - {"pool-config"}} == {"pool-models-"}


def test_bounds_of_scaling_change_no_pod_of_a_scheduler() -> None:
    fixed = desired(observed(gpu_pool(engines={"replicas": 1}, scheduling={"standby": True}), small()))
    scaled = desired(
        observed(gpu_pool(engines={"replicas": 1, "min": 0, "max": 2}, scheduling={"standby": True}), small())
    )
    before, after = by_key(fixed.manifests), by_key(scaled.manifests)
    for name in ("pool-scheduler", "pool-standby"):
        assert before[ChildKey("Deployment", "infra", name)] == after[ChildKey("Deployment", "infra", name)]
    assert (fixed.start_s, scaled.start_s) == (0.0, 600.0)
    assert fixed.mark != scaled.mark, "the scheduler that runs receives it"
    assert '"start_s": 600.0' in entry(after[ChildKey("Secret", "infra", "pool-config")], "scheduler.json")


def test_credentials_of_one_namespace_leave_room_for_those_of_others() -> None:
    def hub(name: str, namespace: str, created: int) -> Json:
        source = {"huggingFace": {"repository": "org/m", "credentialsSecretRef": {"name": name, "key": "token"}}}
        return model_pool(name, models=[{"name": name, "source": source}], namespace=namespace, created=created)

    names = [f"g{at}" for at in range(4)]
    secrets = {("greedy", name): {"token": "x" * 700_000} for name in names} | {("quiet", "mine"): {"token": "t"}}
    pools = [hub(name, "greedy", at) for at, name in enumerate(names)]
    state = desired(observed(POOL, *pools, hub("mine", "quiet", 9), secrets=secrets))
    sizes, files = {}, set[str]()
    for manifest in state.manifests:
        if manifest["kind"] == "Secret":
            sizes[manifest["metadata"]["name"]] = sum(len(base64.b64decode(text)) for text in manifest["data"].values())
            files |= set(manifest["data"]) if manifest["metadata"]["name"].startswith("pool-credentials-") else set()
    assert max(sizes.values()) <= 1 << 20
    assert files == {"greedy.g0.token", "greedy.g1.token", "quiet.mine.token"}
    assert {refusal.reason for refusal in state.attached.refused.values()} == {"NoRoom"}
    assert len(state.attached.refused) == 2
    again = AppliedSecrets.of(observed(POOL, *pools, *state.manifests))
    assert again.credentials["quiet.mine.token"] == "t"


@pytest.mark.parametrize("seed", range(3))
def test_no_shard_and_no_namespace_goes_beyond_its_bound(seed: int) -> None:
    chance, room = random.Random(seed), Shards()
    used, taken, reasons = [0] * SHARDS, dict.fromkeys("abcdefgh", 0), set[str]()
    for number in range(400):
        namespace, size = chance.choice("abcdefgh"), chance.choice([100, 50_000, SHARD_BYTES, SHARD_BYTES + 1])
        place = room.place(namespace, str(number), size)
        if isinstance(place, int):
            used[place] += size
            taken[namespace] += size
        else:
            reasons |= {why for why in WHYS if why in place.message}
    assert max(used) <= SHARD_BYTES
    assert max(taken.values()) <= NAMESPACE_BYTES
    assert reasons == set(WHYS)
