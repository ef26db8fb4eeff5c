"""What is written to an API server that refuses some of it: real HTTP, a server of the test's own."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import pytest
from aiohttp import web
from operator_api import api_server, refusal
from operator_objects import KEY, NOW, PLATFORM, gpu_pool, model_pool, observed

from aegaeon_kube.errors import KubeError
from aegaeon_operator.kube import certificates
from aegaeon_operator.kube.client import Cluster
from aegaeon_operator.kube.controller import Controller
from aegaeon_operator.kube.gather import live
from aegaeon_operator.kube.statuses import Statuses
from aegaeon_operator.kube.store import Store
from aegaeon_operator.kube.writing import Writer
from aegaeon_operator.pki import is_of
from aegaeon_operator.reconcile.cluster.desired import desired
from aegaeon_operator.reconcile.cluster.facts import ChildKey, Key
from aegaeon_operator.reconcile.cluster.report import Reports, reports
from aegaeon_proto.roles import Role

Json = dict[str, Any]


class Server:
    """Keeps what is applied, but for paths that end like one of `refused`: those it answers with that status."""

    def __init__(self, refused: Mapping[str, int] | None = None, there: Mapping[str, Json] | None = None) -> None:
        self.refused = dict(refused or {})
        self.there = dict(there or {})
        self.heard: list[tuple[str, str]] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.heard.append((request.method, request.path))
        for path, status in self.refused.items():
            if request.path.endswith(path) and request.method != "GET":
                return refusal(status, f"no {path} here")
        if request.method == "GET":
            found = self.there.get(request.path)
            return web.json_response(found) if found else refusal(404, "not found")
        if request.method == "DELETE":
            return web.json_response({})
        body = {"spec": {}, **json.loads(await request.text())}
        made = {"name": "an-event", "uid": f"uid-of-{request.path.rpartition('/')[2]}"}
        body["metadata"] = {**made, **body["metadata"], "resourceVersion": str(len(self.heard))}
        at = request.path + ("/" + body["metadata"]["name"] if request.method == "POST" else "")
        if request.method == "POST" and at in self.there and body["kind"] != "Event":
            return refusal(409, "already exists")
        self.there[at] = body
        return web.json_response(body)

    def tries(self, path: str) -> int:
        return sum(heard.endswith(path) for _, heard in self.heard)


def as_live(manifest: Json) -> Json:
    """As the API server has it."""
    return {**manifest, "metadata": {**manifest["metadata"], "uid": "one", "resourceVersion": "1"}}


async def test_statuses_are_written_side_by_side_and_never_too_many() -> None:
    server, open_now, most = Server(), 0, 0
    seen = observed(gpu_pool(), *(model_pool(f"red-{at}", f"model-{at}") for at in range(60)))

    async def slowly(request: web.Request) -> web.StreamResponse:
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        await asyncio.sleep(0.01)
        open_now -= 1
        return await server.answer(request)

    async with api_server(slowly) as api:
        await Statuses(Cluster(api), Store(), lambda: 0.0).write(reports(seen, desired(seen), {}), lambda keys: None)
    assert len([path for _, path in server.heard if path.endswith("/status")]) == 61
    assert 8 <= most <= 16


async def test_refused_writes_are_retried_with_backoff_and_the_others_continue() -> None:
    server, now = Server({"deployments/pool-gateway": 403}), [0.0]
    path = "/apis/apps/v1/namespaces/infra/deployments/pool-gateway"
    wanted = desired(observed(gpu_pool(), model_pool("red", "llama")))
    async with api_server(server.answer) as api:
        writer = Writer(Cluster(api), Store(), lambda: now[0])
        for at, tries, again_s in ((0.0, 1, 1.0), (0.9, 1, 0.1), (1.0, 2, 2.0), (2.9, 2, 0.1), (3.0, 3, 4.0)):
            now[0] = at
            failures = await writer.write(wanted, {})
            assert failures == {ChildKey("Deployment", "infra", "pool-gateway"): "no deployments/pool-gateway here"}
            assert server.heard.count(("PATCH", path)) == tries
            assert writer.again_in() == pytest.approx(again_s)
        assert server.tries("networkpolicies/pool-decode") >= 1
        server.refused.clear()
        now[0] = 7.0
        assert await writer.write(wanted, {ChildKey.of(one): one for one in server.there.values()}) == {}
        assert writer.again_in() == float("inf")


@pytest.mark.parametrize("status", [429, 503, 504])
async def test_an_api_server_that_is_overloaded_refuses_no_object(status: int) -> None:
    """The pool says nothing of it in its status, and is reconciled again."""
    server, store = Server({"deployments/pool-gateway": status}), Store()
    store.put(gpu_pool())
    async with api_server(server.answer) as api:
        controller = Controller(Cluster(api), store, PLATFORM)
        with pytest.raises(KubeError, match="no deployments/pool-gateway here"):
            await controller.reconcile(KEY)
        assert server.tries("gpupools/pool/status") == 0
        server.refused.clear()
        await controller.reconcile(KEY)
    status_of = server.there["/apis/serving.aegaeon.io/v1alpha1/namespaces/infra/gpupools/pool/status"]["status"]
    (accepted,) = (one for one in status_of["conditions"] if one["type"] == "Accepted")
    assert accepted["reason"] == "Applied"


async def test_a_field_contested_by_another_writer_is_retried_with_backoff() -> None:
    server = Server()
    wanted = desired(observed(gpu_pool()))

    async def mutated(request: web.Request) -> web.StreamResponse:
        answer = await server.answer(request)
        assert isinstance(answer, web.Response)
        if request.path.endswith("services/pool-gateway"):
            body = json.loads(answer.text or "")
            body["spec"]["ports"].append({"name": "added", "port": 1})
            return web.json_response(body)
        return answer

    there = {ChildKey.of(one): as_live(one) for one in wanted.manifests}
    service = there[ChildKey("Service", "infra", "pool-gateway")]
    there[ChildKey.of(service)] = {**service, "spec": {}}
    async with api_server(mutated) as api:
        writer = Writer(Cluster(api), Store(), lambda: 0.0)
        for _ in range(5):
            assert await writer.write(wanted, there) == {}
    assert server.heard == [("PATCH", "/api/v1/namespaces/infra/services/pool-gateway")]


async def test_a_role_binding_to_another_role_is_recreated() -> None:
    """As after a change of the chart's operator.watchNamespaces: Roles take the place of ClusterRoles."""
    server = Server()
    wanted = desired(observed(gpu_pool()))
    there = {ChildKey.of(one): as_live(one) for one in wanted.manifests}
    key = ChildKey("RoleBinding", "infra", "pool-scheduler")
    former = {**there[key], "roleRef": {**there[key]["roleRef"], "name": "of-before"}}
    async with api_server(server.answer) as api:
        assert await Writer(Cluster(api), Store(), lambda: 0.0).write(wanted, {**there, key: former}) == {}
    path = "/apis/rbac.authorization.k8s.io/v1/namespaces/infra/rolebindings/pool-scheduler"
    event = "/api/v1/namespaces/infra/events"
    assert server.heard == [("DELETE", path), ("POST", event), ("PATCH", path)]


async def test_a_secret_with_another_owner_is_left_alone() -> None:
    path = "/api/v1/namespaces/infra/secrets/pool-config"
    server = Server(there={path: {"metadata": {"name": "pool-config"}, "data": {"theirs": ""}}})
    async with api_server(server.answer) as api:
        failures = await Writer(Cluster(api), Store(), lambda: 0.0).write(desired(observed(gpu_pool())), {})
    assert "is not owned by this pool" in failures[ChildKey("Secret", "infra", "pool-config")]
    assert server.there[path]["data"] == {"theirs": ""}


async def test_model_pools_that_come_and_go_are_not_remembered() -> None:
    async with api_server(Server().answer) as api:
        statuses = Statuses(Cluster(api), Store(), lambda: 0.0)
        for day in range(5):
            red = model_pool("red", "llama")
            red["metadata"]["uid"] = f"red-{day}"
            seen = observed(gpu_pool(), red)
            await statuses.write(reports(seen, desired(seen), {}), lambda keys: None)
            assert f"red-{day}" in statuses._written
    assert len(statuses._written) == 2, "those of the pool and of the last one"


async def test_a_status_that_another_client_takes_back_is_written_again() -> None:
    server, cached = Server(), Reports()
    path = "/apis/serving.aegaeon.io/v1alpha1/namespaces/infra/modelpools/red/status"
    async with api_server(server.answer) as api:
        statuses = Statuses(Cluster(api), Store(), lambda: 0.0)
        red = model_pool("red", "llama")
        writes = []
        for status in ({}, None, None, {}, None):  # None: as the operator wrote it
            red["status"] = server.there[path]["status"] if status is None else status
            seen = observed(gpu_pool(), red)
            await statuses.write(cached.of(seen, desired(seen), {}), lambda keys: None)
            writes.append(server.heard.count(("PATCH", path)))
    assert writes == [1, 1, 1, 2, 2]


async def test_a_refused_status_or_event_does_not_block_others() -> None:
    pools = [gpu_pool(), model_pool("blue", "qwen", namespace="going"), model_pool("red", "llama")]
    pools[0]["spec"]["allowedNamespaces"] = ["going"]
    server = Server({"modelpools/blue/status": 422, "namespaces/infra/events": 403})
    store = Store()
    for one in pools:
        store.put(one)
    async with api_server(server.answer) as api:
        with pytest.raises(KubeError, match="status of ModelPool blue: no modelpools/blue/status here"):
            await Controller(Cluster(api), store, PLATFORM).reconcile(KEY)
    base = "/apis/serving.aegaeon.io/v1alpha1/namespaces/infra"
    assert {f"{base}/modelpools/red/status", f"{base}/gpupools/pool/status"} <= server.there.keys()


async def test_a_change_that_the_answer_to_a_status_brings_is_reconciled() -> None:
    """The watch brings it as well, and nothing that is newer: the pool would not be looked at for minutes."""
    server, store, asked = Server(), Store(), list[Key]()
    pools = [gpu_pool(), model_pool("red", "llama"), model_pool("blue", "qwen")]
    for one in pools:
        store.put(one)

    async def changed_meanwhile(request: web.Request) -> web.StreamResponse:
        answer = await server.answer(request)
        kind, name = request.path.split("/")[-3:-1]
        if not request.path.endswith("/status"):
            return answer
        assert isinstance(answer, web.Response)
        written = json.loads(answer.text or "")
        read = next(one for one in pools if one["metadata"]["name"] == name)
        after = {**read, "status": written["status"]}
        after["metadata"] = {**read["metadata"], "resourceVersion": written["metadata"]["resourceVersion"]}
        if kind == "modelpools" and name == "red":
            after["spec"] = {**read["spec"], "gpuPoolRef": {"name": "other"}}
        return web.json_response(after)

    async with api_server(changed_meanwhile) as api:
        controller = Controller(Cluster(api), store, PLATFORM)
        controller.look_at = asked.extend
        await controller.reconcile(KEY)
    assert server.tries("/status") == 3
    assert set(asked) == {KEY, Key("infra", "other")}


async def test_certificates_that_cannot_be_issued_are_reported_in_the_status() -> None:
    path = "/api/v1/namespaces/infra/secrets/pool-gateway-tls"
    server, store = Server(there={path: {"metadata": {"name": "pool-gateway-tls", "labels": {}}, "data": {}}}), Store()
    store.put(gpu_pool())
    async with api_server(server.answer) as api:
        await Controller(Cluster(api), store, PLATFORM).reconcile(KEY)
    status = server.there["/apis/serving.aegaeon.io/v1alpha1/namespaces/infra/gpupools/pool/status"]["status"]
    (accepted,) = (one for one in status["conditions"] if one["type"] == "Accepted")
    assert accepted["reason"] == "ApplyFailed"
    assert "Secret pool-gateway-tls: an object of this name exists and is not owned by this pool" in accepted["message"]
    assert server.there[path]["data"] == {}


async def test_broken_certificates_are_reissued_and_a_recreated_pool_takes_none_of_the_first_ones() -> None:
    server = Server()
    pool, recreated = gpu_pool(), gpu_pool()
    recreated["metadata"]["uid"] = "another"

    def children() -> dict[ChildKey, Json]:
        return {ChildKey.of(one): one for one in server.there.values()}

    async with api_server(server.answer) as api:
        cluster = Cluster(api)
        first = await certificates.ensure(cluster, KEY, live(pool), {}, NOW, {})
        second = await certificates.ensure(cluster, KEY, live(pool), children(), NOW, first.own)
        assert (second.own, second.written) == (first.own, [])
        del server.there["/api/v1/namespaces/infra/secrets/pool-gateway-tls"]["data"]["tls.key"]
        third = await certificates.ensure(cluster, KEY, live(pool), children(), NOW, first.own)
        assert [one["metadata"]["name"] for one in third.written] == ["pool-gateway-tls"]
        assert third.written[0]["data"]["tls.key"]
        before = dict(server.there)
        with pytest.raises(KubeError, match="not owned by this pool"):
            await certificates.ensure(cluster, KEY, live(recreated), {}, NOW, {})
        assert server.there == before
        server.there["/api/v1/namespaces/infra/secrets/pool-ca"]["data"] = {}
        with pytest.raises(KubeError, match=r"pool-ca is malformed .* delete it"):
            await certificates.ensure(cluster, KEY, live(pool), children(), NOW, {})


async def test_each_role_has_a_secret_of_its_own_and_the_operators_certificate_is_in_none() -> None:
    server = Server()
    async with api_server(server.answer) as api:
        made = await certificates.ensure(Cluster(api), KEY, live(gpu_pool()), {}, NOW, {})
    secrets = {one["metadata"]["name"]: one["data"] for one in made.written}
    assert secrets.keys() == {"pool-ca", "pool-scheduler-tls", "pool-gateway-tls", "pool-engine-tls"}
    for role in (Role.SCHEDULER, Role.GATEWAY, Role.ENGINE):
        certificate = base64.b64decode(secrets[f"pool-{role}-tls"]["tls.crt"])
        assert [one for one in Role if is_of(certificate, one)] == [role]
    assert is_of(made.own["tls.crt"], Role.OPERATOR)
    assert base64.b64encode(made.own["tls.key"]).decode() not in str(secrets)


@pytest.mark.parametrize("days", [0, 61])
async def test_a_secret_with_another_roles_or_an_expiring_certificate_is_reissued(days: int) -> None:
    server = Server()
    there = "/api/v1/namespaces/infra/secrets/pool-"

    async def ensure(now: datetime, own: certificates.Files) -> certificates.Certified:
        children = {ChildKey.of(one): one for one in server.there.values()}
        return await certificates.ensure(Cluster(api), KEY, live(gpu_pool()), children, now, own)

    async with api_server(server.answer) as api:
        first = await ensure(NOW, {})
        server.there[f"{there}engine-tls"]["data"] = server.there[f"{there}gateway-tls"]["data"]
        second = await ensure(NOW + timedelta(days=days), first.own)
        assert "pool-engine-tls" in {one["metadata"]["name"] for one in second.written}
        certificate = base64.b64decode(server.there[f"{there}engine-tls"]["data"]["tls.crt"])
        assert is_of(certificate, Role.ENGINE)
        assert (second.own == first.own) == (days == 0)
