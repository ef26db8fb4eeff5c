"""`aegaeon apply`: other models, objectives and tenants for a pool that `aegaeon up` runs, while it serves."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import click
import grpc

from aegaeon_cli.errors import NoAnswerError, RefusedError
from aegaeon_cli.options import manifests_option
from aegaeon_native.leases import locked
from aegaeon_operator.podrunner import RunState, default_base, find_run, missing_models, unusable_keys
from aegaeon_operator.reconcile import DesiredPod, LocalSettings, PodRole, needs_restart, reconcile
from aegaeon_operator.reconcile.pods import Json
from aegaeon_operator.spec import Pool, load_manifests
from aegaeon_proto.channels import open_channel
from aegaeon_proto.roles import Role
from aegaeon_proto.v1 import admin_pb2, admin_pb2_grpc
from aegaeon_scheduler.config import ModelEntry
from aegaeon_scheduler.service.catalog import spec_of


@click.command()
@manifests_option
@click.option("--run", "run", type=click.Path(path_type=Path), metavar="DIR", help="Folder of the run, if several run.")
@click.option(
    "--drain",
    "drain_s",
    type=click.FloatRange(0),
    default=30.0,
    show_default=True,
    help="Seconds that requests of a removed model have to end.",
)
def apply(*, manifests: Path, run: Path | None, drain_s: float) -> None:
    """Give the pool that runs on this machine other models and tenants, without a restart.

    Models come and go, objectives, quotas, keys and grants change. A model with another source is prepared beside the
    one that is served, which ends what it was asked. What needs a restart is named, and nothing is changed then.

    \b
    Example:
      aegaeon apply -f examples/quickstart/
    """
    state = find_run(default_base(), run)
    with locked(state.folder):  # of two at once the scheduler would have one's models, and its file the other's
        _apply(manifests, state, drain_s)


def _apply(manifests: Path, state: RunState, drain_s: float) -> None:
    pool = _pool(manifests, state)
    pods = reconcile(pool, _settings(state))
    problems = needs_restart(_running(pods, state.folder), pods)
    if state.scaling != (scaling := pool.gpu_pool.spec.scaling):
        problems.append(
            f"engines are added and taken away by {state.scaling or 'no rule'} and would be by {scaling or 'no rule'}"
        )
    if problems:
        raise RefusedError("\n".join([*problems, "end `aegaeon up` and start it again for that; nothing was changed"]))
    scheduler = next(pod for pod in pods if pod.role is PodRole.SCHEDULER)
    reply = asyncio.run(_set_catalog(state.admin, scheduler.config, drain_s))
    for pod in pods:
        for file, content in {pod.config_file: pod.config, **pod.files}.items():
            _replace(file, content)
    for what, names in (("added", reply.added), ("changed", reply.changed), ("removed", reply.removed)):
        for name in names:
            click.echo(f"model {name} {what}")
    if reply.refused:
        raise RefusedError("\n".join([*(note.reason for note in reply.refused), "everything else was changed"]))
    click.echo(f"pool {state.pool} is as {manifests} says")


def _pool(manifests: Path, state: RunState) -> Pool:
    pools = load_manifests(manifests, Path(state.models)).pools
    found = next((pool for pool in pools if pool.gpu_pool.metadata.name == state.pool), None)
    if found is None:
        raise RefusedError(f"{manifests}: has no GpuPool {state.pool}, which is the one that runs")
    if problems := [*missing_models(found), *unusable_keys(found)]:
        raise RefusedError("\n".join(problems))
    return found


def _settings(state: RunState) -> LocalSettings:
    return LocalSettings(
        run_folder=state.folder,
        sockets=state.sockets,
        segments=Path(state.segments),
        python=sys.executable,
        port=state.port,
        record=Path(state.record) if state.record else None,
        constants=Path(state.constants) if state.constants else None,
        share_gpu=state.share_gpu,
    )


def _running(wanted: tuple[DesiredPod, ...], folder: Path) -> dict[str, Json]:
    """Configuration files of the run by pod; other files of pods are not configuration."""
    others = {file.name for pod in wanted for file in pod.files} | {"run.json"}
    return {file.stem: json.loads(file.read_text("utf-8")) for file in folder.glob("*.json") if file.name not in others}


async def _set_catalog(target: str, config: Json, drain_s: float) -> admin_pb2.SetCatalogReply:
    models = config["models"]
    assert isinstance(models, list)
    specs = [spec_of(ModelEntry.model_validate(model)) for model in models]
    request = admin_pb2.SetCatalogRequest(models=specs, drain_s=drain_s, retry=True)
    async with open_channel(target, None, Role.SCHEDULER) as channel:
        try:
            return await admin_pb2_grpc.AdminStub(channel).SetCatalog(request)
        except grpc.aio.AioRpcError as error:
            raise NoAnswerError(
                f"the scheduler at {target} does not answer ({error.code().name}); is it running?"
            ) from error


def _replace(file: Path, content: Json) -> None:
    """Atomically: a reader sees the old one or the new one."""
    draft = file.with_suffix(".new")
    draft.write_text(json.dumps(content, indent=2), "utf-8")
    draft.replace(file)
