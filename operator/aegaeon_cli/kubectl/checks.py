"""Checks of `kubectl aegaeon doctor`. Every check yields findings, or raises CliError where the user has no
permission."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from kubernetes import client

from aegaeon_cli.errors import CliError, RefusedError
from aegaeon_cli.findings import Finding, Verdict
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
    """The version of the API server, and whether it has our custom resource definitions."""
    server = where.json("the API server", client.VersionApi(where.api).get_code)
    version = (int(server["major"]), int(server["minor"].rstrip("+")))
    verdict, remedy = Verdict.GOOD, ""
    if version < _OLDEST:
        verdict, remedy = Verdict.MISSING, "Aegaeon needs Kubernetes 1.30 or newer"
    yield Finding("API server", server["gitVersion"], verdict, remedy)
    try:
        for plural in ("gpupools", "modelpools"):
            where.pools(plural)
    except NotThereError:
        remedy = "helm install aegaeon, or kubectl apply --server-side -f crds/"
        yield Finding("definitions", "are not installed", Verdict.MISSING, remedy)
    else:
        yield Finding("definitions", "serving.aegaeon.io/v1alpha1", Verdict.GOOD)


def not_ready(where: Where) -> dict[str, str]:
    """Nodes that are not ready, with the reason of the condition. Raises CliError."""
    reasons = {}
    for node in where.json("nodes", where.core.list_node)["items"]:
        conditions = {condition["type"]: condition for condition in node.get("status", {}).get("conditions") or ()}
        ready = conditions.get("Ready", {"status": "Unknown", "reason": "NodeStatusNeverUpdated"})
        if ready["status"] != "True":
            reasons[node["metadata"]["name"]] = str(ready.get("reason") or ready["status"])
    return reasons


def nodes(lost: dict[str, str]) -> Iterator[Finding]:
    """Nodes that are not ready: they explain most of the later findings."""
    for name, reason in sorted(lost.items()):
        remedy = "its pods are not queried; `kubectl describe node` shows the cause and the last heartbeat"
        yield Finding("node", f"{name} is not ready: {reason}", Verdict.MISSING, remedy)


def operator(where: Where, system: str) -> Iterator[Finding]:
    """The operator's Deployment, its leader, and its metrics."""
    apps = client.AppsV1Api(where.api)
    deployments = where.json(
        f"Deployments of {system}", apps.list_namespaced_deployment, system, label_selector=_SELECTOR
    )
    if not deployments["items"]:
        remedy = "install it with `helm install aegaeon`, or name its namespace with --system NAME"
        yield Finding("operator", f"is not in namespace {system}", Verdict.MISSING, remedy)
        return
    for deployment in deployments["items"]:
        yield _deployment(deployment)
    yield _leader(where, system)
    yield from _metrics(where, system)


def _deployment(body: Json) -> Finding:
    replicas, ready = body["spec"].get("replicas", 1), body.get("status", {}).get("readyReplicas", 0)
    image = body["spec"]["template"]["spec"]["containers"][0]["image"]
    verdict = Verdict.GOOD if ready == replicas else Verdict.NOTE if ready else Verdict.MISSING
    name = f"{body['metadata']['namespace']}/{body['metadata']['name']}"
    remedy = "" if ready == replicas else f"`kubectl describe deployment {body['metadata']['name']}` shows why"
    return Finding("operator", f"{name}: {ready}/{replicas} ready, {image}", verdict, remedy)


def _leader(where: Where, system: str) -> Finding:
    try:
        holder, age_s = _lease(where, system)
    except NotThereError:
        return Finding(
            "leader", "no operator has been elected", Verdict.MISSING, "see the operator's logs: kubectl logs"
        )
    except CliError as error:
        return Finding("leader", f"not checked: {error}", Verdict.NOTE)
    if not holder or age_s > _RENEWED_WITHIN_S:
        remedy = "nothing is reconciled and statuses are stale; see the logs of the operator's pods"
        return Finding("leader", f"none: {holder or 'no pod'} renewed {age_s:.0f} s ago", Verdict.MISSING, remedy)
    return Finding("leader", holder, Verdict.GOOD)


def _lease(where: Where, system: str) -> tuple[str, float]:
    """The holder of the operator's Lease, and seconds since its last renewal. Raises CliError."""
    read = client.CoordinationV1Api(where.api).read_namespaced_lease
    spec = where.json(f"Lease {system}/{_LEASE}", read, _LEASE, system)["spec"]
    age = datetime.now(UTC) - datetime.fromisoformat(spec["renewTime"])
    return spec.get("holderIdentity") or "", age.total_seconds()


def _metrics(where: Where, system: str) -> Iterator[Finding]:
    """Metrics of the leading operator, read through a port-forward."""
    try:
        scraped = scrape(where, system, _SELECTOR)
    except CliError as error:
        yield Finding("operator's metrics", f"not checked: {error}", Verdict.NOTE)
        return
    yield from metric_findings(scraped, datetime.now(UTC), where.namespace)


def metric_findings(scraped: Scraped, now: datetime, namespace: str | None) -> Iterator[Finding]:
    """Findings from the operator's metrics about pools of a namespace; None: of all namespaces."""
    expiries = scraped.of("certificate_expiry_timestamp_seconds", namespace, "role")
    soon = {labels: at for labels, at in expiries.items() if datetime.fromtimestamp(at, UTC) - now < _EXPIRES_SOON}
    for (place, pool, role), at in sorted(soon.items()):
        when = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d")
        remedy = "the operator renews certificates 30 days before they expire; its log shows why this one was not"
        yield Finding(
            "certificate", f"{place}/{pool}: the certificate of {role} expires {when}", Verdict.MISSING, remedy
        )
    for (place, pool, kind), count in sorted(scraped.of("refused_objects", namespace, "kind").items()):
        remedy = f"kubectl -n {place} describe gpool {pool}"
        text = f"{place}/{pool}: the API server refuses {count:.0f} of kind {kind}"
        yield Finding("refused objects", text, Verdict.MISSING, remedy)
    for (place, pool), at in sorted(scraped.of("last_reconcile_timestamp_seconds", namespace).items()):
        age_s = now.timestamp() - at
        if age_s > _LOOKED_WITHIN_S:
            text = f"{place}/{pool} was last reconciled {age_s / 60:.0f} min ago"
            yield Finding("reconciles", text, Verdict.MISSING, "see the log of the leading operator")
    if scraped.undefined:
        remedy = "pools that do not use them need no action; the operator watches a kind within 10 s of its definition"
        yield Finding("kinds", f"not defined in this cluster: {', '.join(scraped.undefined)}", Verdict.NOTE, remedy)
    if expiries and not soon:
        first = datetime.fromtimestamp(min(expiries.values()), UTC).strftime("%Y-%m-%d")
        yield Finding("certificates", f"{len(expiries)}, the first expires {first}", Verdict.GOOD)


def objects(where: Where, system: str) -> Iterator[Finding]:
    """Conditions of GpuPools and ModelPools. The operator does not rewrite an unchanged status: it is as old as the
    last renewal of the operator's Lease."""
    try:
        age_s = _lease(where, system)[1]
    except CliError:  # the finding `leader` reports it
        age_s = 0.0
    resources = [*where.pools("gpupools"), *where.pools("modelpools")]
    if not resources:
        yield Finding("pools", "there are none", Verdict.NOTE, "kubectl apply -f examples/kubernetes/")
    for resource in resources:
        yield _aged(condition_finding(resource), age_s)
        yield from suspect_finding(resource)


def _aged(finding: Finding, age_s: float) -> Finding:
    if age_s <= _RENEWED_WITHIN_S:
        return finding
    verdict = Verdict.NOTE if finding.verdict is Verdict.GOOD else finding.verdict
    return replace(finding, text=f"{finding.text} (as of {age_s:.0f} s ago: no operator leads)", verdict=verdict)


def suspect_finding(body: Json) -> Iterator[Finding]:
    """GPUs that the engines of a GpuPool do not use, since they were lost repeatedly."""
    conditions = {each["type"]: each for each in body.get("status", {}).get("conditions", ())}
    condition = conditions.get("DeviceSuspect", {})
    if condition.get("status") == "True":
        name = f"{body['metadata']['namespace']}/{body['metadata']['name']}"
        remedy = "dmesg on the node shows its Xid; docs/guides/operations.md describes how to clear it by hand"
        yield Finding("suspect GPU", f"{name}: {condition['message']}", Verdict.NOTE, remedy)


def condition_finding(body: Json) -> Finding:
    """The conditions Ready and Degraded, with the message that `kubectl get` shows."""
    metadata, status = body["metadata"], body.get("status", {})
    name = f"{metadata['namespace']}/{metadata['name']}"
    conditions = {condition["type"]: condition for condition in status.get("conditions", ())}
    ready, degraded = conditions.get("Ready"), conditions.get("Degraded", {})
    if ready is None:
        return Finding(
            body["kind"], f"{name}: has no status", Verdict.MISSING, "check that an operator watches its namespace"
        )
    if ready["status"] != "True":
        return Finding(body["kind"], f"{name}: {ready['reason']}: {ready['message']}", Verdict.MISSING)
    if degraded.get("status") == "True":
        return Finding(body["kind"], f"{name}: Degraded: {degraded['reason']}: {degraded['message']}", Verdict.NOTE)
    return Finding(body["kind"], f"{name}: Ready, {status.get('summary') or 'no models'}", Verdict.GOOD)


def schedulers(where: Where) -> Iterator[Finding]:
    """Check that each pool's scheduler answers, and count its engines."""
    keys = pools(where)
    for key, answer in zip(keys, asyncio.run(_statuses(where, keys)), strict=True):
        name = "/".join(key)
        if isinstance(answer, CliError):
            yield _not_looked_at("scheduler", key, answer)
            continue
        alive = sum(instance.alive for instance in answer.instances)
        text = f"{name}: answers, {alive} engines, {len(answer.models)} models, policy {answer.policy}"
        yield Finding("scheduler", text, Verdict.GOOD if alive else Verdict.NOTE)
        if (late := late_finding(name, answer)) is not None:
            yield late


def late_finding(name: str, status: PoolStatus) -> Finding | None:
    """A finding when a scheduler falls behind the reports of its engines."""
    if status.lag_s <= LIMIT_S:
        return None
    behind = f"{name}: {1000 * status.lag_s:.0f} ms late, {status.intake} new requests wait for it"
    text = f"{behind}, {status.refused} were refused since its start"
    return Finding("scheduler", text, Verdict.NOTE, "the pool has more engines than one scheduler can serve; split it")


async def _statuses(where: Where, keys: list[Key]) -> list[PoolStatus | CliError]:
    return list(await asyncio.gather(*(_status(where, key) for key in keys)))


async def _status(where: Where, key: Key) -> PoolStatus | CliError:
    try:
        return await read(where, key)
    except CliError as error:
        return error


def pods_of(where: Where) -> Iterator[Finding]:
    """Pods that restarted or are not ready."""
    for key in pools(where):
        try:
            pool_pods = pods(where, key)
        except CliError as error:
            yield _not_looked_at("pods", key, error)
            continue
        wrong = [pod for pod in pool_pods if pod.restarts or not pod.ready]
        yield from (_pod(key, pod) for pod in wrong)
        if pool_pods and not wrong:
            yield Finding("pods", f"{'/'.join(key)}: {len(pool_pods)}, all ready, none was restarted", Verdict.GOOD)


def _pod(key: Key, pod: Pod) -> Finding:
    state = pod.phase if pod.ready else f"{pod.phase}, not ready"
    text = f"{key.namespace}/{pod.name}: {state}, {pod.restarts} restarts"
    remedy = f"kubectl -n {key.namespace} logs --previous {pod.name}" if pod.restarts else ""
    return Finding("pod", text, Verdict.NOTE, remedy)


def _not_looked_at(what: str, key: Key, error: CliError) -> Finding:
    """A note where the user of the kubeconfig has no permission."""
    if isinstance(error, RefusedError):
        return Finding(what, f"{'/'.join(key)}: not checked: {error}", Verdict.NOTE)
    return Finding(what, str(error), Verdict.MISSING)
