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
from aegaeon_scheduler.service.codec.catalog import spec_of


@click.command()
@manifests_option
@click.option(
    "--run",
    "run",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder of the run; needed when several pools run.",
)
@click.option(
    "--drain",
    "drain_s",
    type=click.FloatRange(0),
    default=30.0,
    show_default=True,
    help="Seconds that requests of a removed model have to finish.",
)
def apply(*, manifests: Path, run: Path | None, drain_s: float) -> None:
    """Change the models and tenants of the pool that runs on this machine, without a restart.

    Models are added and removed; objectives, quotas, keys and grants change. A model whose source changes is loaded
    beside the old version, which finishes its requests. When a change needs a restart, the command names it and
    changes nothing.

    \b
    Example:
      aegaeon apply -f examples/quickstart/
    """
    state = find_run(default_base(), run)
    with locked(state.folder):  # two at once could leave the scheduler with one's models and its file with the other's
        _apply(manifests, state, drain_s)


def _apply(manifests: Path, state: RunState, drain_s: float) -> None:
    pool = _pool(manifests, state)
    pods = reconcile(pool, _settings(state))
    problems = needs_restart(_running(pods, state.folder), pods)
    if state.scaling != (scaling := pool.gpu_pool.spec.scaling):
        problems.append(
            f"spec.autoscaling: the pool runs with {state.scaling or 'none'}, the manifests have {scaling or 'none'}"
        )
    if problems:
        raise RefusedError(
            "\n".join([*problems, "nothing was changed; to apply this, stop `aegaeon up` and start it again"])
        )
    scheduler = next(pod for pod in pods if pod.role is PodRole.SCHEDULER)
    reply = asyncio.run(_set_catalog(state.admin, scheduler.config, drain_s))
    for pod in pods:
        for file, content in {pod.config_file: pod.config, **pod.files}.items():
            _replace(file, content)
    for what, names in (("added", reply.added), ("changed", reply.changed), ("removed", reply.removed)):
        for name in names:
            click.echo(f"model {name} {what}")
    if reply.refused:
        raise RefusedError("\n".join([*(note.reason for note in reply.refused), "all other changes were applied"]))
    click.echo(f"pool {state.pool} now matches {manifests}")


def _pool(manifests: Path, state: RunState) -> Pool:
    pools = load_manifests(manifests, Path(state.models)).pools
    running = next((pool for pool in pools if pool.gpu_pool.metadata.name == state.pool), None)
    if running is None:
        raise RefusedError(f"{manifests}: contains no GpuPool {state.pool}, which is the pool that runs")
    if problems := [*missing_models(running), *unusable_keys(running)]:
        raise RefusedError("\n".join(problems))
    return running


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


def _running(pods: tuple[DesiredPod, ...], folder: Path) -> dict[str, Json]:
    """Configuration files of the run by pod; other files of pods are not configuration."""
    ignored = {file.name for pod in pods for file in pod.files} | {"run.json"}
    return {
        file.stem: json.loads(file.read_text("utf-8")) for file in folder.glob("*.json") if file.name not in ignored
    }


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
    """Write the file atomically: a reader sees the old content or the new content."""
    draft = file.with_suffix(".new")
    draft.write_text(json.dumps(content, indent=2), "utf-8")
    draft.replace(file)
