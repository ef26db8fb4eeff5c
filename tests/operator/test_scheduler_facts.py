"""What the operator makes of a scheduler's answer."""

from __future__ import annotations

from operator_objects import gpu_pool, observed

from aegaeon_operator.kube.scaling import replicas
from aegaeon_operator.kube.scheduler import facts
from aegaeon_operator.reconcile.cluster.facts import ModelFacts, SuspectFacts
from aegaeon_operator.reconcile.cluster.memo import Memo
from aegaeon_operator.reconcile.cluster.scaler import Scaler
from aegaeon_operator.spec.resources import GpuPool
from aegaeon_proto.v1 import admin_pb2, engine_pb2, gateway_pb2, model_pb2


def answer(
    *instances: gateway_pb2.InstanceStatus,
    waits_s: float = 0.0,
    phase: model_pb2.ModelPhase = model_pb2.MODEL_PHASE_CACHED,
) -> admin_pb2.AdminStatus:
    waiting = [gateway_pb2.SequenceStatus(model="llama", state="queued", age_s=waits_s)] if waits_s else []
    llama = gateway_pb2.ModelStatus(spec=model_pb2.ModelSpec(name="llama"), phase=phase)
    return admin_pb2.AdminStatus(
        pool=gateway_pb2.PoolStatus(instances=instances, sequences=waiting),
        catalog=gateway_pb2.CatalogStatus(models=[llama]),
    )


def engine(name: str, **state: bool) -> gateway_pb2.InstanceStatus:
    return gateway_pb2.InstanceStatus(instance=name, role=engine_pb2.ROLE_UNIFIED, **{"alive": True, **state})


def test_engines_that_are_gone_or_draining_do_not_count_as_attached() -> None:
    found = facts(answer(engine("a"), engine("b", draining=True), engine("c", alive=False)), slab_bytes=1)
    assert {one.name: one.attached for one in found.engines} == {"a": True, "b": False, "c": False}


def test_devices_that_engines_leave_alone_are_facts() -> None:
    status = answer(engine("a"))
    device = engine_pb2.SuspectDevice(instance="b", node="n", uuid="5f1c", error="CUDA error 700", losses=2)
    status.pool.suspects.append(device)
    assert facts(status, slab_bytes=1).suspects == (SuspectFacts("b", "n", "5f1c", "CUDA error 700"),)


def test_requests_waiting_for_a_fetch_are_open_and_do_not_wait_for_an_engine() -> None:
    found = facts(answer(engine("a"), waits_s=60.0, phase=model_pb2.MODEL_PHASE_FETCHING), slab_bytes=1)
    assert (found.oldest_wait_s, found.open_requests) == (0.0, 1)
    assert facts(answer(engine("a"), waits_s=60.0), slab_bytes=1).oldest_wait_s == 60.0


def test_a_gateway_that_is_gone_says_nothing_of_redis() -> None:
    gateways = [
        admin_pb2.GatewayStatus(gateway=name, attached=name != "c", redis_away=away)
        for name, away in (("a", "Timeout"), ("b", ""), ("c", "Timeout"))
    ]
    assert facts(admin_pb2.AdminStatus(gateways=gateways), slab_bytes=1).redis_away == {"a": "Timeout"}


def test_no_engine_is_added_while_one_that_drains_is_being_replaced() -> None:
    seen = observed(gpu_pool(engines={"replicas": 2, "min": 1, "max": 4}))
    for others, wanted in (({"draining": True}, 2), ({}, 3)):
        found = facts(answer(engine("a"), engine("b", **others), waits_s=60.0), slab_bytes=1)
        pool = seen.gpu_pool
        assert pool is not None
        assert isinstance(pool.value, GpuPool)
        assert Scaler().step(pool.value.spec, replicas(seen), found, 0.0) == {"unified": wanted}


def test_facts_of_a_model_are_the_same_object_until_they_change() -> None:
    """A pool has thousands, of which few change between two statuses."""
    memo = Memo()

    def model(**traffic: float) -> ModelFacts:
        status = answer(engine("a"))
        status.pool.models.append(gateway_pb2.ModelTraffic(model="llama", **traffic))
        return facts(status, 1, memo).models["llama"]

    before = model(output_tokens=5, worked_s=1.0)
    assert model(output_tokens=5, worked_s=2.0) is before
    assert model(output_tokens=6, worked_s=1.0).output_tokens == 6
