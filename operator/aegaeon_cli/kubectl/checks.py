"""What `kubectl aegaeon doctor` looks at. Every check yields findings, or raises CliError where it may not look."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from kubernetes import client

from aegaeon_cli.doctor import Finding, Verdict
from aegaeon_cli.errors import CliError, RefusedError
from aegaeon_cli.kubectl.access import Json, NotThereError, Where
from aegaeon_cli.kubectl.operator_metrics import Scraped, scrape
from aegaeon_cli.kubectl.pools import Pod, pods, pools
from aegaeon_cli.kubectl.top import read
from aegaeon_operator.reconcile.cluster.facts import Key
from aegaeon_proto.v1.gateway_pb2 import PoolStatus
from aegaeon_scheduler.service.lag import LIMIT_S

_OLDEST = (1, 30)
_LEASE = "aegaeon-operator"
_SELECTOR = "app.kubernetes.io/name=aegaeon-operator"
_RENEWED_WITHIN_S = 15.0  # a leader renews every 2 s, and another takes over after 10 s
_EXPIRES_SOON = timedelta(days=21)
_LOOKED_WITHIN_S = 900.0


def api_server(where: Where) -> Iterator[Finding]:
    """Its version, and whether it knows our kinds."""
    found = where.json("the API server", client.VersionApi(where.api).get_code)
    version = (int(found["major"]), int(found["minor"].rstrip("+")))
    verdict, remedy = Verdict.GOOD, ""
    if version < _OLDEST:
        verdict, remedy = Verdict.MISSING, "Aegaeon needs Kubernetes 1.30 or newer"
    yield Finding("API server", found["gitVersion"], verdict, remedy)
    try:
        for plural in ("gpupools", "modelpools"):
            where.pools(plural)
    except NotThereError:
        remedy = "helm install aegaeon, or kubectl apply --server-side -f crds/"
        yield Finding("definitions", "are not installed", Verdict.MISSING, remedy)
    else:
        yield Finding("definitions", "serving.aegaeon.io/v1alpha1", Verdict.GOOD)


def not_ready(where: Where) -> dict[str, str]:
    """Nodes that take no pods since their kubelet is silent or unwell, and why. Raises CliError."""
    reasons = {}
    for node in where.json("nodes", where.core.list_node)["items"]:
        conditions = {condition["type"]: condition for condition in node.get("status", {}).get("conditions") or ()}
        ready = conditions.get("Ready", {"status": "Unknown", "reason": "NodeStatusNeverUpdated"})
        if ready["status"] != "True":
            reasons[node["metadata"]["name"]] = str(ready.get("reason") or ready["status"])
    return reasons


def nodes(lost: dict[str, str]) -> Iterator[Finding]:
    """Those that do not answer: what is on them explains most of what follows."""
    for name, reason in sorted(lost.items()):
        remedy = "its pods are not asked here; kubectl describe node has the cause, and when it was last heard"
        yield Finding("node", f"{name} is not ready: {reason}", Verdict.MISSING, remedy)


def operator(where: Where, system: str) -> Iterator[Finding]:
    """Its Deployment, who leads, and what it says of itself."""
    apps = client.AppsV1Api(where.api)
    found = where.json(f"Deployments of {system}", apps.list_namespaced_deployment, system, label_selector=_SELECTOR)
    if not found["items"]:
        remedy = "helm install aegaeon, or say its namespace: --system NAME"
        yield Finding("operator", f"is not in namespace {system}", Verdict.MISSING, remedy)
        return
    for one in found["items"]:
        yield _deployment(one)
    yield _leader(where, system)
    yield from _metrics(where, system)


def _deployment(body: Json) -> Finding:
    wanted, ready = body["spec"].get("replicas", 1), body.get("status", {}).get("readyReplicas", 0)
    image = body["spec"]["template"]["spec"]["containers"][0]["image"]
    verdict = Verdict.GOOD if ready == wanted else Verdict.NOTE if ready else Verdict.MISSING
    name = f"{body['metadata']['namespace']}/{body['metadata']['name']}"
    remedy = "" if ready == wanted else f"kubectl describe deployment {body['metadata']['name']} says why"
    return Finding("operator", f"{name}: {ready}/{wanted} ready, {image}", verdict, remedy)


def _leader(where: Where, system: str) -> Finding:
    try:
        holder, age_s = _lease(where, system)
    except NotThereError:
        return Finding("leader", "no operator has led", Verdict.MISSING, "kubectl logs of its pods say why")
    except CliError as error:
        return Finding("leader", f"not looked at: {error}", Verdict.NOTE)
    if not holder or age_s > _RENEWED_WITHIN_S:
        remedy = "nothing is reconciled and statuses are old; kubectl logs of the operator's pods say why none leads"
        return Finding("leader", f"none: {holder or 'no pod'} renewed {age_s:.0f} s ago", Verdict.MISSING, remedy)
    return Finding("leader", holder, Verdict.GOOD)


def _lease(where: Where, system: str) -> tuple[str, float]:
    """Who leads, and seconds since it said so last. Raises CliError."""
    read = client.CoordinationV1Api(where.api).read_namespaced_lease
    spec = where.json(f"Lease {system}/{_LEASE}", read, _LEASE, system)["spec"]
    age = datetime.now(UTC) - datetime.fromisoformat(spec["renewTime"])
    return spec.get("holderIdentity") or "", age.total_seconds()


def _metrics(where: Where, system: str) -> Iterator[Finding]:
    """Of the leader, through a port-forward."""
    try:
        scraped = scrape(where, system, _SELECTOR)
    except CliError as error:
        yield Finding("operator's metrics", f"not looked at: {error}", Verdict.NOTE)
        return
    yield from metric_findings(scraped, datetime.now(UTC), where.namespace)


def metric_findings(scraped: Scraped, now: datetime, namespace: str | None) -> Iterator[Finding]:
    """What the operator counts of the pools of a namespace, None: of all."""
    expiries = scraped.of("certificate_expiry_timestamp_seconds", namespace, "role")
    soon = {one: at for one, at in expiries.items() if datetime.fromtimestamp(at, UTC) - now < _EXPIRES_SOON}
    for (place, pool, role), at in sorted(soon.items()):
        when = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d")
        remedy = "the operator renews it 30 days before; its log says why it did not"
        yield Finding("certificate", f"{place}/{pool}: that of {role} expires {when}", Verdict.MISSING, remedy)
    for (place, pool, kind), count in sorted(scraped.of("refused_objects", namespace, "kind").items()):
        remedy = f"kubectl -n {place} describe gpool {pool}"
        found = f"{place}/{pool}: the API server refuses {count:.0f} of kind {kind}"
        yield Finding("refused objects", found, Verdict.MISSING, remedy)
    for (place, pool), at in sorted(scraped.of("last_reconcile_timestamp_seconds", namespace).items()):
        age_s = now.timestamp() - at
        if age_s > _LOOKED_WITHIN_S:
            found = f"{place}/{pool} was last reconciled {age_s / 60:.0f} min ago"
            yield Finding("reconciles", found, Verdict.MISSING, "kubectl logs of the operator that leads")
    if scraped.undefined:
        remedy = "pools without them need nothing; the operator watches a kind 10 s after it is defined"
        yield Finding("kinds", f"not defined here: {', '.join(scraped.undefined)}", Verdict.NOTE, remedy)
    if expiries and not soon:
        first = datetime.fromtimestamp(min(expiries.values()), UTC).strftime("%Y-%m-%d")
        yield Finding("certificates", f"{len(expiries)}, the first expires {first}", Verdict.GOOD)


def objects(where: Where, system: str) -> Iterator[Finding]:
    """Conditions of GpuPools and ModelPools. A status that nothing changes is not written again: it is as old as the
    last renewal of the operator's Lease."""
    try:
        age_s = _lease(where, system)[1]
    except CliError:  # the line of the leader says it
        age_s = 0.0
    found = [*where.pools("gpupools"), *where.pools("modelpools")]
    if not found:
        yield Finding("pools", "there are none", Verdict.NOTE, "kubectl apply -f examples/kubernetes/")
    for one in found:
        yield _aged(condition_finding(one), age_s)
        yield from suspect_finding(one)


def _aged(finding: Finding, age_s: float) -> Finding:
    if age_s <= _RENEWED_WITHIN_S:
        return finding
    verdict = Verdict.NOTE if finding.verdict is Verdict.GOOD else finding.verdict
    return replace(finding, text=f"{finding.text} (as it was {age_s:.0f} s ago: no operator leads)", verdict=verdict)


def suspect_finding(body: Json) -> Iterator[Finding]:
    """GPUs that engines of a GpuPool leave alone."""
    conditions = {each["type"]: each for each in body.get("status", {}).get("conditions", ())}
    condition = conditions.get("DeviceSuspect", {})
    if condition.get("status") == "True":
        name = f"{body['metadata']['namespace']}/{body['metadata']['name']}"
        remedy = "dmesg of the node has its Xid; docs/guides/operations.md says how to clear it by hand"
        yield Finding("suspect GPU", f"{name}: {condition['message']}", Verdict.NOTE, remedy)


def condition_finding(body: Json) -> Finding:
    """Ready and Degraded say it, with the message that `kubectl get` has."""
    metadata, status = body["metadata"], body.get("status", {})
    name = f"{metadata['namespace']}/{metadata['name']}"
    said = {one["type"]: one for one in status.get("conditions", ())}
    ready, degraded = said.get("Ready"), said.get("Degraded", {})
    if ready is None:
        return Finding(body["kind"], f"{name}: has no status", Verdict.MISSING, "does an operator watch its namespace?")
    if ready["status"] != "True":
        return Finding(body["kind"], f"{name}: {ready['reason']}: {ready['message']}", Verdict.MISSING)
    if degraded.get("status") == "True":
        return Finding(body["kind"], f"{name}: Degraded: {degraded['reason']}: {degraded['message']}", Verdict.NOTE)
    return Finding(body["kind"], f"{name}: Ready, {status.get('summary') or 'no models'}", Verdict.GOOD)


def schedulers(where: Where) -> Iterator[Finding]:
    """Whether each pool's scheduler answers, and with how many engines."""
    keys = pools(where)
    for key, answer in zip(keys, asyncio.run(_statuses(where, keys)), strict=True):
        name = "/".join(key)
        if isinstance(answer, CliError):
            yield _not_looked_at("scheduler", key, answer)
            continue
        alive = sum(one.alive for one in answer.instances)
        found = f"{name}: answers, {alive} engines, {len(answer.models)} models, policy {answer.policy}"
        yield Finding("scheduler", found, Verdict.GOOD if alive else Verdict.NOTE)
        if (late := late_finding(name, answer)) is not None:
            yield late


def late_finding(name: str, status: PoolStatus) -> Finding | None:
    """Whether a scheduler is behind with what engines report."""
    if status.lag_s <= LIMIT_S:
        return None
    behind = f"{name}: {1000 * status.lag_s:.0f} ms late, {status.intake} new requests wait for it"
    text = f"{behind}, {status.refused} were refused since its start"
    return Finding("scheduler", text, Verdict.NOTE, "it has more engines than one process can serve: split the pool")


async def _statuses(where: Where, keys: list[Key]) -> list[PoolStatus | CliError]:
    return list(await asyncio.gather(*(_status(where, key) for key in keys)))


async def _status(where: Where, key: Key) -> PoolStatus | CliError:
    try:
        return await read(where, key)
    except CliError as error:
        return error


def pods_of(where: Where) -> Iterator[Finding]:
    """Pods that were started again, or are not ready."""
    for key in pools(where):
        try:
            there = pods(where, key)
        except CliError as error:
            yield _not_looked_at("pods", key, error)
            continue
        wrong = [one for one in there if one.restarts or not one.ready]
        yield from (_pod(key, one) for one in wrong)
        if there and not wrong:
            yield Finding("pods", f"{'/'.join(key)}: {len(there)}, all ready, none was restarted", Verdict.GOOD)


def _pod(key: Key, pod: Pod) -> Finding:
    state = pod.phase if pod.ready else f"{pod.phase}, not ready"
    found = f"{key.namespace}/{pod.name}: {state}, {pod.restarts} restarts"
    remedy = f"kubectl -n {key.namespace} logs --previous {pod.name}" if pod.restarts else ""
    return Finding("pod", found, Verdict.NOTE, remedy)


def _not_looked_at(what: str, key: Key, error: CliError) -> Finding:
    """A note where the user of the kubeconfig may not look."""
    if isinstance(error, RefusedError):
        return Finding(what, f"{'/'.join(key)}: not looked at: {error}", Verdict.NOTE)
    return Finding(what, str(error), Verdict.MISSING)
