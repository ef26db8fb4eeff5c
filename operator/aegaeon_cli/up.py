"""`aegaeon up`: the same manifests and the same reconcile as on a cluster, with child processes as pods."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import click

from aegaeon_cli.errors import BadFileError
from aegaeon_cli.folders import constants_file, models_folder
from aegaeon_cli.options import manifests_option, models_option
from aegaeon_cli.welcome import wait_for_models, welcome
from aegaeon_operator.errors import ManifestError
from aegaeon_operator.podrunner import (
    LocalScaling,
    PodRunner,
    RestartPolicy,
    RunFolder,
    RunState,
    default_base,
    look,
    preflight,
)
from aegaeon_operator.reconcile import LocalSettings, reconcile
from aegaeon_operator.reconcile.local import gateway_port
from aegaeon_operator.spec import Pool, load_manifests

_SHARED_MEMORY = Path("/dev/shm")
_MODELS_WAIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the command line."""

    manifests: Path
    models: Path
    port: int | None
    record: Path | None
    constants: Path | None
    share_gpu: bool
    start_timeout_s: float
    verbose: bool


class Console:
    """Prints the pods on standard error: events always, their output with -v."""

    def __init__(self, verbose: bool) -> None:
        self._verbose = verbose

    def output(self, pod: str, line: str) -> None:
        if self._verbose:
            click.echo(f"{click.style(f'{pod:>12} |', dim=True)} {line}", err=True)

    def event(self, pod: str, text: str) -> None:
        click.echo(f"{pod}: {text}", err=True)


@click.command()
@manifests_option
@click.option("--port", type=click.IntRange(1, 65535), help="Port of the OpenAI API, instead of the manifest's.")
@models_option
@click.option(
    "--record",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the scheduler's event log to FILE, for `aegaeon replay`.",
)
@click.option(
    "--constants",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Latency constants.  [default: those of `aegaeon calibrate`, if it was run]",
)
@click.option(
    "--share-gpu", is_flag=True, help="All engines share the first engine's GPU, whose memory must suffice for all."
)
@click.option(
    "--start-timeout",
    type=click.FloatRange(min=1),
    default=RestartPolicy().start_timeout_s,
    show_default=True,
    metavar="SECONDS",
    help="Fail when a process is not ready and used no CPU time for this long.",
)
@click.option("-v", "--verbose", is_flag=True, help="Print the output of the pods.")
def up(
    *,
    manifests: Path,
    port: int | None,
    models: Path | None,
    record: Path | None,
    constants: Path | None,
    share_gpu: bool,
    start_timeout: float,
    verbose: bool,
) -> None:
    """Run the pool that DIR describes on this machine until Ctrl-C.

    \b
    Example:
      aegaeon up -f examples/quickstart/
    """
    known = constants or (constants_file() if constants_file().is_file() else None)
    if record is not None and not record.absolute().parent.is_dir():
        raise BadFileError(f"--record {record}: folder {record.absolute().parent} does not exist; create it first")
    record = record.absolute() if record else None
    places = manifests, models or models_folder(), port, record, known
    asyncio.run(_serve(Options(*places, share_gpu, start_timeout, verbose)))


async def _serve(options: Options) -> None:
    pool = _only_pool(options)
    _preflight(pool, options)
    folder = RunFolder.create(default_base(), _SHARED_MEMORY, pool.gpu_pool.metadata.name)
    try:
        await _run(pool, options, folder)
    finally:
        folder.remove()


def _only_pool(options: Options) -> Pool:
    pools = load_manifests(options.manifests, options.models).pools
    if len(pools) > 1:
        names = ", ".join(pool.gpu_pool.metadata.name for pool in pools)
        raise ManifestError(
            [
                f"{options.manifests}: has {len(pools)} GpuPools ({names}); `aegaeon up` runs one; put each "
                f"into a folder of its own"
            ]
        )
    return pools[0]


def _settings(options: Options, folder: Path, sockets: Path, segments: Path) -> LocalSettings:
    return LocalSettings(
        run_folder=folder,
        sockets=sockets,
        segments=segments,
        python=sys.executable,
        port=options.port,
        record=options.record,
        constants=options.constants,
        share_gpu=options.share_gpu,
    )


def _preflight(pool: Pool, options: Options) -> None:
    preflight(pool, _settings(options, Path("."), Path("."), Path(".")), look(_SHARED_MEMORY))


async def _run(pool: Pool, options: Options, folder: RunFolder) -> None:
    settings = _settings(options, folder.path, folder.sockets, folder.segments)
    console = Console(options.verbose)
    policy = RestartPolicy(start_timeout_s=options.start_timeout_s)
    runner = PodRunner(reconcile(pool, settings), folder, policy, console)
    stop = _on_signals(runner)
    scaling = LocalScaling(pool.gpu_pool.spec, runner, settings.admin_target, console)
    work = asyncio.create_task(_bring_up(pool, settings, runner, folder, options.models))
    stopped = asyncio.create_task(stop.wait())
    tasks = {work, stopped}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            await work
            if pool.gpu_pool.spec.scaled:
                tasks.add(asyncio.create_task(scaling.run()))
            ended, _ = await asyncio.wait(tasks - {work}, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                task.result()  # a failure of the autoscaler ends the run
            click.echo("draining; press Ctrl-C again to stop at once", err=True)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await runner.drain()


def _on_signals(runner: PodRunner) -> asyncio.Event:
    """An event that the first signal sets; any later signal kills the pods."""
    stop = asyncio.Event()

    def signalled() -> None:
        if stop.is_set():
            runner.kill()
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, signalled)
    return stop


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


async def _bring_up(pool: Pool, settings: LocalSettings, runner: PodRunner, folder: RunFolder, models: Path) -> None:
    began = time.monotonic()
    url = f"http://{settings.host}:{gateway_port(pool, settings)}"
    state = RunState(
        pool=pool.gpu_pool.metadata.name,
        pid=os.getpid(),
        url=url,
        scheduler=settings.scheduler_target,
        admin=settings.admin_target,
        segments=str(settings.segments),
        port=settings.port,
        record=_text(settings.record),
        constants=_text(settings.constants),
        models=str(models),
        scaling=pool.gpu_pool.spec.scaling,
        share_gpu=settings.share_gpu,
    )
    click.echo(f"starting pool {state.pool} in {folder.path} ...")
    folder.publish(state)
    await runner.start()
    status = await wait_for_models(settings.scheduler_target, _MODELS_WAIT_S)
    folder.publish(replace(state, ready=True))
    click.echo(welcome(status, url, time.monotonic() - began))
