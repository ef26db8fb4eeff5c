"""Every state that a GpuPool or ModelPool can be in, and the lines that `kubectl get` has for it.

`python -m operator_states FILE` writes the page of the docs (`make generate`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from operator_answer_states import of_answers
from operator_device_states import of_devices
from operator_node_states import of_nodes
from operator_objects import KEY, Json, a_child, gpu_pool, model_pool
from operator_state import CACHED, PODS, SERVED, State, broken, pod, suspended, unplaced
from operator_tenant_states import of_tenants

from aegaeon_operator.reconcile.cluster.facts import ChildKey, ModelFacts

POOL, RED = gpu_pool(), model_pool("red", "llama")
BOTH = (POOL, RED)
SPLIT = gpu_pool(prefill={"replicas": 1}, decode={"replicas": 1})
del SPLIT["spec"]["engines"]
SPLIT_PODS = {
    **{name: one for name, one in PODS.items() if one != "engine"},
    "pool-prefill-0": "prefill",
    "pool-decode-0": "decode",
}
NOT_FOUND = (
    'Back-off pulling image "registry.example/engine:2": ErrImagePull: rpc error: code = NotFound desc = '
    "registry.example/engine:2: not found"
)
PULL = {"waiting": {"reason": "ImagePullBackOff", "message": NOT_FOUND}}
CREATING = {"waiting": {"reason": "ContainerCreating"}}
CRASHED = {"waiting": {"reason": "CrashLoopBackOff"}}
NO_VOLUME = 'MountVolume.SetUp failed for volume "models" : hostPath type check failed: /srv/models is not a directory'
FORBIDDEN = 'create Pod pool-engine-0 failed: forbidden: violates PodSecurity "baseline": hostPath volumes'
ENGINES = ("pool-engine-0", "pool-engine-1")


def of_starting_engines() -> Iterator[State]:
    """Why engines do not start."""
    yield State(
        "Engines start",
        BOTH,
        {name: broken(name, "engine", {"running": {}}, started=False) for name in ENGINES},
        models={},
    )
    yield State(
        "One of two engines starts",
        BOTH,
        {ENGINES[1]: broken(ENGINES[1], "engine", {"running": {}}, started=False)},
    )
    yield State(
        "The image of the engines cannot be pulled",
        BOTH,
        {name: broken(name, "engine", PULL) for name in ENGINES},
        models={},
    )
    yield State(
        "No node has an accelerator left for one of two engines",
        BOTH,
        {ENGINES[1]: unplaced(ENGINES[1], "engine", "0/2 nodes are available: 2 Insufficient nvidia.com/gpu.")},
    )
    killed = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
    yield State(
        "Engines are killed for their memory again and again",
        BOTH,
        {name: broken(name, "engine", CRASHED, restartCount=4, lastState=killed) for name in ENGINES},
        models={},
    )
    yield State(
        "All engines crash",
        BOTH,
        {
            name: broken(name, "engine", CRASHED, restartCount=3, lastState={"terminated": {"exitCode": 2}})
            for name in ENGINES
        },
        models={},
    )


def of_suspended_engines() -> Iterator[State]:
    """Engines that wait for quota."""
    yield State("Kueue has admitted one of two engines", BOTH, {ENGINES[1]: suspended(ENGINES[1], "engine", "gpus")})
    yield State(
        "Kueue has admitted no engine yet",
        BOTH,
        {name: suspended(name, "engine", "gpus") for name in ENGINES},
        models={},
    )
    yield State("A scheduling gate holds an engine", BOTH, {ENGINES[1]: suspended(ENGINES[1], "engine")})


def of_unmade_engines() -> Iterator[State]:
    """What the cluster refuses to engines."""
    yield State(
        "The folder of the models is missing on the nodes",
        BOTH,
        {name: broken(name, "engine", CREATING) for name in ENGINES},
        models={},
        seen={"warnings": {ChildKey("Pod", KEY.namespace, ENGINES[0]): NO_VOLUME}},
    )
    yield State(
        "The namespace does not allow the engines' pods",
        BOTH,
        dict.fromkeys(ENGINES, None),
        models={},
        seen={"warnings": {ChildKey("StatefulSet", KEY.namespace, "pool-engine"): FORBIDDEN}},
    )
    yield State("Engines are ready, but the scheduler does not know them", BOTH, detached=ENGINES, models={})
    refused = {"waiting": {"reason": "CreateContainerError", "message": "runtime nvidia is not known"}}
    yield State(
        "Containers of the engines cannot be made",
        BOTH,
        {name: broken(name, "engine", refused) for name in ENGINES},
        models={},
    )


def of_missing_engines() -> Iterator[State]:
    """Engines that are gone, or were not asked for."""
    yield State(
        "The node of an engine does not answer",
        BOTH,
        {ENGINES[1]: pod(ENGINES[1], "engine", conditions=[{"type": "Ready", "status": "False"}])},
    )
    yield State(
        "An engine is evicted from its node",
        BOTH,
        {
            ENGINES[1]: pod(
                ENGINES[1], "engine", phase="Failed", reason="Evicted", message="low on memory.", conditions=[]
            )
        },
        components={name: one for name, one in PODS.items() if name != ENGINES[0]},
        models={},
    )
    yield State("Engines take more memory beside their slabs than is reserved", BOTH, outside=(1 << 30, (1 << 30) + 1))
    yield State(
        "No engine is asked for",
        (gpu_pool(engines={"replicas": 0}), RED),
        components={name: one for name, one in PODS.items() if one != "engine"},
        models={},
    )
    yield State(
        "No engine runs, since there are no requests",
        (gpu_pool(engines={"replicas": 0, "min": 0, "max": 2}), RED),
        components={name: one for name, one in PODS.items() if one != "engine"},
        models={},
    )
    yield State(
        "The only decode engine is lost",
        (SPLIT, RED),
        {"pool-decode-0": {**pod("pool-decode-0", "decode", conditions=[])}},
        components=SPLIT_PODS,
    )
    apart = ModelFacts("", "pool-prefill-0 of node a prefills it, and no engine decodes it for that one", apart=True)
    yield State("The decode engine is on another node", (SPLIT, RED), components=SPLIT_PODS, models={"llama": apart})


def without(component: str) -> dict[str, str]:
    """The usual pods but those of one component."""
    return {name: one for name, one in PODS.items() if one != component}


SCHEDULER, GATEWAYS = "pool-scheduler-7d9-x", ("pool-gateway-5c4-a", "pool-gateway-5c4-b")


def of_control() -> Iterator[State]:
    """What scheduler, gateways and picker can lack."""
    node = "0/2 nodes are available: 2 node(s) were unschedulable."
    yield State(
        "The scheduler finds no node", BOTH, {SCHEDULER: unplaced(SCHEDULER, "scheduler", node)}, scheduler=False
    )
    yield State(
        "The scheduler's pod is ready, but does not answer",
        BOTH,
        scheduler=False,
        seen={"unreachable": "the scheduler does not answer: Deadline Exceeded"},
    )
    gone = {"metadata": {**pod(SCHEDULER, "scheduler")["metadata"], "deletionTimestamp": "2026-11-21T23:50:00Z"}}
    yield State(
        "The scheduler is ending", BOTH, {SCHEDULER: {**broken(SCHEDULER, "scheduler", {}), **gone}}, scheduler=False
    )
    standby = "pool-standby-6f8-y"
    two: dict[str, Any] = {
        "objects": (gpu_pool(scheduling={"standby": True}), RED),
        "components": {**PODS, standby: "standby"},
    }
    yield State("The standby of the scheduler finds no node", pods={standby: unplaced(standby, "standby", node)}, **two)
    yield State(
        "The scheduler is lost, its standby leads",
        pods={SCHEDULER: pod(SCHEDULER, "scheduler", conditions=[{"type": "Ready", "status": "False"}])},
        **two,
    )
    yield State(
        "The scheduler is lost, its standby does not lead yet",
        scheduler=False,
        seen={"unreachable": "no scheduler leads"},
        **two,
    )
    asleep = {name: broken(name, "gateway", {"running": {}}, started=True) for name in GATEWAYS}
    yield State("No gateway is ready", BOTH, asleep)
    yield State("One of two gateways is not ready", BOTH, {GATEWAYS[1]: asleep[GATEWAYS[1]]})
    yield State("No gateway is asked for", (gpu_pool(gateway={"replicas": 0}), RED), components=without("gateway"))
    yield State("The endpoint picker is not there yet", (gpu_pool(gateway={"endpointPicker": {}}), RED))
    timeout = "Timeout connecting to server"
    yield State("Gateways cannot use the Redis that counts quotas", BOTH, redis_away=dict.fromkeys(GATEWAYS, timeout))


def of_changes() -> Iterator[State]:
    """What the API server, or the operator, makes of the spec."""
    yield State(
        "The GpuPool's spec is one that this version refuses", (gpu_pool(engines={"replicas": -1}), RED), models={}
    )
    refused = {ChildKey("Deployment", KEY.namespace, "pool-gateway"): 'exceeded quota: "pods"'}
    yield State("The API server refuses an object of the pool", BOTH, failures=refused)
    huge = "the change of llama cannot be served: it needs 64 slabs and an engine has 48"
    yield State("The scheduler refuses a change of a model", BOTH, refused={"llama": huge})
    yield State("A model gets another source", BOTH, changing={"llama": "its new files are loaded; 2 requests drain"})
    yield State("The pool is replaced pod by pod", (with_generation(POOL, 2), RED), seen={}, rolling=True)


def with_generation(body: Json, generation: int) -> Json:
    """After so many changes of its spec."""
    return {**body, "metadata": {**body["metadata"], "generation": generation}}


def guarded(name: str, **source: Any) -> Json:
    """A ModelPool of one model of the hub."""
    hub = {"repository": "org/gated", **source}
    return model_pool("red", models=[{"name": name, "source": {"huggingFace": hub}}])


def of_models() -> Iterator[State]:
    """What the models of a ModelPool can lack."""
    fetching = ModelFacts(
        "fetching", bytes_done=7_600_000_000, bytes_total=15_200_000_000, bytes_per_s=9e8, remaining_s=8
    )
    yield State("A model is being fetched", BOTH, models={"llama": fetching})
    failed = ModelFacts("failed", "llama: config.json: cannot be read: No such file or directory")
    yield State(
        "A model cannot be used, another one serves",
        (POOL, model_pool("red", "llama", "qwen")),
        models={"llama": failed, "qwen": SERVED},
    )
    yield State("Nothing was asked for yet", BOTH, models={"llama": CACHED})
    late = ModelFacts("cached", output_tokens=1000, tokens_on_time=620, token_s=0.01)
    yield State("Too few tokens for a verdict", BOTH, models={"llama": ModelFacts("cached", output_tokens=99)})
    yield State("Tokens are late", BOTH, models={"llama": late})
    slow = ModelFacts("cached", output_tokens=1000, tokens_on_time=950, token_s=0.9)
    yield State("The models want more engines than there are", BOTH, models={"llama": slow})
    yield State("A model is larger than an engine", BOTH, models={"llama": ModelFacts("cached", weight_bytes=1 << 40)})


def of_references() -> Iterator[State]:
    """What a ModelPool can ask for in vain."""
    yield State("The GpuPool does not exist", (RED,))
    yield State(
        "The GpuPool does not allow the namespace", (POOL, model_pool("red", "llama", namespace="team")), models={}
    )
    yield State(
        "An older ModelPool serves a model of the name",
        (POOL, RED, model_pool("blue", "llama", "qwen", created=1)),
        models={"llama": SERVED, "qwen": CACHED},
    )
    yield State(
        "A model's folder is not inside the GpuPool's",
        (POOL, model_pool("red", models=[{"name": "llama", "source": {"hostPath": "/etc/llama"}}])),
        models={},
    )
    poet = {"name": "poet", "source": {"hostPath": "poet"}}
    with_poet = {"name": "llama", "source": {"hostPath": "llama"}, "adapters": [poet]}
    yield State(
        "A model has adapters, and the GpuPool has no room for them",
        (POOL, model_pool("red", models=[with_poet])),
        models={"llama": SERVED},
    )
    yield State(
        "A model needs a disk tier",
        (POOL, model_pool("red", models=[{"name": "llama", "source": {"s3": {"bucket": "models"}}}])),
        models={},
    )
    yield State(
        "Credentials of a model are missing",
        (POOL, guarded("llama", credentialsSecretRef={"name": "hub.token", "key": "token"})),
        models={},
    )
    too_large = {("infra", "hub"): {"token": "x" * 1_100_000}}
    yield State(
        "Models, tenants or credentials have no room",
        (POOL, guarded("llama", credentialsSecretRef={"name": "hub", "key": "token"})),
        models={},
        seen={"secrets": too_large},
    )
    yield State("Credentials are a file", (POOL, guarded("llama", credentialsFile="/etc/token")), models={})
    yield State(
        "The ModelPool's spec is one that this version refuses", (POOL, model_pool("red", "a model")), models={}
    )


def of_routes() -> Iterator[State]:
    """What Gateways say."""
    routed = (POOL, model_pool("red", "llama", gateway={"parentRefs": [{"name": "public"}]}))
    key = ChildKey("HTTPRoute", KEY.namespace, "red")
    yield State("No Gateway knows the route yet", routed)
    yield State(
        "A Gateway refuses the route", routed, routes=(parents("False", "NotAllowedByListeners", "no listener"),)
    )
    yield State("A Gateway has accepted the route", routed, routes=(parents("True", "Accepted", ""),))
    yield State(
        "The route cannot be made",
        routed,
        failures={key: "the cluster does not serve this kind, or the namespace does not exist: httproutes"},
    )


def parents(status: str, reason: str, message: str) -> Json:
    """What a Gateway writes into the route."""
    said = [
        {"type": kind, "status": status, "reason": reason, "message": message} for kind in ("Accepted", "ResolvedRefs")
    ]
    head = a_child("HTTPRoute", "red", "ModelPool-infra-red")
    return {**head, "status": {"parents": [{"conditions": said}]}}


STATES: dict[str, tuple[State, ...]] = {
    "What serves": (
        State("All is well", BOTH),
        State("All is well with prefill and decode engines", (SPLIT, RED), components=SPLIT_PODS),
    ),
    "Engines": (*of_starting_engines(), *of_suspended_engines(), *of_unmade_engines(), *of_missing_engines()),
    "Devices": tuple(of_devices(BOTH)),
    "Requests without an answer": tuple(of_answers(BOTH, (POOL, model_pool("red", "llama", "qwen")))),
    "Scheduler, gateways, picker": (*of_control(), *of_nodes(RED)),
    "What becomes of a change": tuple(of_changes()),
    "Models": tuple(of_models()),
    "What a ModelPool refers to": tuple(of_references()),
    "Tenants": tuple(of_tenants(POOL)),
    "Routes": tuple(of_routes()),
}


def page() -> Iterator[str]:
    """The page of the docs."""
    yield "<!-- made by `make generate` from tests/operator_states.py; do not edit -->\n"
    yield "# What `kubectl get gpool,mpool` shows\n"
    for title, states in STATES.items():
        yield f"## {title}\n"
        for state in states:
            yield f"**{state.title}**\n\n```\n{state.table()}\n```\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text("\n".join(page()), "utf-8")
