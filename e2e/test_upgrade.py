"""`helm upgrade` from a release whose Redis was a StatefulSet, and `helm rollback`, under load: no request fails."""

from __future__ import annotations

import json
import subprocess
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from e2e.installation import SYSTEM, WHERE, with_redis
from e2e.kubectl import CHART, REPOSITORY, helm, kubectl
from e2e.load import Load
from e2e.manifests import RED, gpu_pool, keys, model_pool
from e2e.polling import poll
from e2e.pool import PodsOfPool, a_pool

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600, func_only=True)]
# The last commit whose chart had the StatefulSet.
BEFORE = "3191c6a4c2aa"
NAMESPACE = "aegaeon-upgrade"
MODELS = {"llama": RED, "qwen2": RED}
REDIS = "aegaeon-redis"
_WAIT = ("--wait", "--timeout=240s")


@pytest.fixture
def chart_before(tmp_path: Path) -> str:
    """Its folder, from the history of this repository."""
    archive = ("git", "-C", str(REPOSITORY), "archive", BEFORE, "helm/aegaeon")
    packed = subprocess.run(archive, capture_output=True, check=False)
    if packed.returncode:
        pytest.skip(f"needs commit {BEFORE}, which a shallow clone lacks; git fetch --unshallow")
    with tarfile.open(fileobj=BytesIO(packed.stdout)) as files:
        files.extractall(tmp_path, filter="data")
    return str(tmp_path / "helm" / "aegaeon")


def test_an_upgrade_and_a_rollback_fail_no_request_and_change_no_answer(
    own_cluster: Path, models: Path, chart_before: str
) -> None:
    spec = gpu_pool(engines={"replicas": 2})
    with with_redis(own_cluster, chart_before), a_pool(own_cluster, NAMESPACE, spec) as pool:
        pool.apply(keys("red", RED), model_pool("red", [*MODELS]))
        pool.wait_until_ready()
        assert redis_of(own_cluster) == ["StatefulSet"]
        with Load(pool.url, MODELS, models, probe_s=1.0) as load:
            load.wait_for_answers(6)
            helm(own_cluster, "upgrade", "aegaeon", CHART, *WHERE, "--reset-then-reuse-values", *_WAIT)
            serves_with(pool, load, "Deployment")
            helm(own_cluster, "rollback", "aegaeon", *WHERE, *_WAIT)
            serves_with(pool, load, "StatefulSet")
    print(f"{len(load.exchanges)} requests")
    load.check()


def serves_with(pool: PodsOfPool, load: Load, kind: str) -> None:
    """The pool is ready, counts quotas in that Redis, and answers."""
    poll(f"its Redis is a {kind}", lambda: redis_of(pool.kubeconfig) == [kind], 60)
    pool.wait_until_ready()
    poll("gateways use it", lambda: degraded(pool) != "RedisAway", 60)
    load.wait_for_answers(12)


def redis_of(server: Path) -> list[str]:
    """Kinds of what runs the Redis."""
    listed = kubectl(server, "-n", SYSTEM, "get", "statefulset,deployment", "-o", "json")
    return [body["kind"] for body in json.loads(listed)["items"] if body["metadata"]["name"] == REDIS]


def degraded(pool: PodsOfPool) -> str:
    """Why the GpuPool is, or is not."""
    conditions = json.loads(pool.kubectl("get", "gpupool", pool.name, "-o", "json"))["status"]["conditions"]
    return next(str(each["reason"]) for each in conditions if each["type"] == "Degraded")
