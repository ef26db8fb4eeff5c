"""The pod runner with real child processes: crash and restart, order of draining, and that nothing stays behind."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from aegaeon_operator.errors import RunnerError
from aegaeon_operator.podrunner import PodRunner, RestartPolicy, RunFolder, runfolder
from aegaeon_operator.podrunner.child import LogFile
from aegaeon_operator.podrunner.probe import ready
from aegaeon_operator.reconcile import AttachedProbe, DesiredPod, HttpProbe, PodRole

MakePod = Callable[..., DesiredPod]
QUICK = RestartPolicy(first_s=0.02, longest_s=0.1, grace_s=5.0, start_timeout_s=20.0)


class Heard:
    """What a console would have shown."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []
        self.events: list[tuple[str, str]] = []

    def output(self, pod: str, line: str) -> None:
        self.lines.append((pod, line))

    def event(self, pod: str, text: str) -> None:
        self.events.append((pod, text))


@asynccontextmanager
async def running(
    folder: RunFolder, *pods: DesiredPod, policy: RestartPolicy = QUICK, heard: Heard | None = None
) -> AsyncIterator[PodRunner]:
    runner = PodRunner(pods, folder, policy, heard or Heard())
    try:
        await runner.start()
        yield runner
    finally:
        await runner.drain()


async def eventually(condition: Callable[[], bool], within_s: float = 10.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - another process is watched
            await asyncio.sleep(0.01)


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text("ascii").rsplit(")", 1)[1].split()[0] != "Z"


async def test_every_pod_is_ready_after_start_and_gone_after_drain(folder: RunFolder, make_pod: MakePod) -> None:
    heard = Heard()
    async with running(folder, make_pod("a"), make_pod("b"), heard=heard) as runner:
        pids = runner.pids
        assert set(pids) == {"a", "b"}
        assert all(exists(pid) for pid in pids.values())
    assert not any(exists(pid) for pid in pids.values())
    assert runner.pids == {}
    assert ("a", "hello from a") in heard.lines
    assert folder.log_file("b").read_text("utf-8") == "hello from b\n"


async def test_every_line_is_kept_whatever_bytes_a_pod_writes(folder: RunFolder, make_pod: MakePod) -> None:
    heard, pod = Heard(), make_pod("a")
    noise = "import sys; sys.stdout.buffer.write(b'x' * 200000 + b'\\n\\xff\\n\\nno newline'); sys.stdout.flush()\n"
    loud = replace(pod, argv=(*pod.argv[:-2], noise + pod.argv[-2], pod.argv[-1]))
    async with running(folder, loud, heard=heard):
        pass
    text = "".join(line for _, line in heard.lines)
    assert text == "x" * 200000 + "\ufffd" + "no newlinehello from a"
    assert max(len(line) for _, line in heard.lines) <= 2 * 65536


async def test_a_log_that_cannot_be_opened_does_not_stop_the_pod_that_writes(
    folder: RunFolder, make_pod: MakePod
) -> None:
    heard, pod = Heard(), make_pod("a")
    folder.log_file("a").mkdir()
    noise = "print('x' * 200000, flush=True)\n"  # more than the pipe holds
    async with running(folder, replace(pod, argv=(*pod.argv[:-2], noise + pod.argv[-2], pod.argv[-1])), heard=heard):
        assert "x" * 200000 in "".join(line for _, line in heard.lines)


def test_a_full_disk_is_said_once_and_not_with_every_line(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    log = LogFile("/dev/full", encoding="utf-8", delay=True)
    for _ in range(3):
        log.emit(logging.makeLogRecord({"msg": "a line"}))
    with suppress(OSError):
        log.close()
    assert [record.getMessage() for record in caplog.records] == [
        "cannot write to /dev/full: [Errno 28] No space left on device"
    ]
    assert not capsys.readouterr().err


async def test_a_pod_waits_for_the_pods_that_it_depends_on(folder: RunFolder, make_pod: MakePod) -> None:
    heard = Heard()
    first = make_pod("first", crash=2)
    async with running(folder, make_pod("second", depends=("first",)), first, heard=heard):
        assert [pod for pod, _ in heard.lines] == ["first", "first", "first", "second"]


async def test_a_pod_on_demand_runs_from_its_begin_to_its_end_and_may_begin_again(
    folder: RunFolder, make_pod: MakePod
) -> None:
    heard, lazy = Heard(), replace(make_pod("lazy"), on_demand=True)
    async with running(folder, make_pod("a"), lazy, heard=heard) as runner:
        assert set(runner.pids) == {"a"}
        for _ in range(2):
            runner.begin("lazy")
            runner.begin("lazy")  # which is no second one
            await eventually(lambda: "lazy" in runner.pids)
            pid = runner.pids["lazy"]
            await runner.end("lazy")
            assert set(runner.pids) == {"a"}
            assert not exists(pid)
        runner.begin("lazy")
        await eventually(lambda: "lazy" in runner.pids)
    assert runner.pids == {}
    assert heard.events == [], "none of them crashed"


async def test_a_killed_pod_is_started_again_and_the_others_stay(folder: RunFolder, make_pod: MakePod) -> None:
    heard, pod = Heard(), make_pod("a")
    async with running(folder, pod, make_pod("b"), heard=heard) as runner:
        before = runner.pids
        os.kill(before["a"], signal.SIGKILL)
        await eventually(lambda: runner.pids.get("a") not in (None, before["a"]))
        assert runner.pids["b"] == before["b"]
        async with asyncio.timeout(10):
            while not await ready(pod.probe):  # noqa: ASYNC110 - another process is asked
                await asyncio.sleep(0.01)
    assert heard.events == [("a", "killed by SIGKILL; restarting in 0.02 s")]


async def test_a_pod_that_cannot_be_started_for_a_moment_is_started_then(folder: RunFolder, make_pod: MakePod) -> None:
    heard = Heard()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with running(folder, make_pod("a"), heard=heard) as runner:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))  # every descriptor beyond is refused
        try:
            os.kill(runner.pids["a"], signal.SIGKILL)
            await eventually(lambda: any("cannot start" in text for _, text in heard.events))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        await eventually(lambda: "a" in runner.pids)


async def test_the_pause_between_restarts_doubles_to_its_bound(folder: RunFolder, make_pod: MakePod) -> None:
    heard = Heard()
    policy = RestartPolicy(first_s=0.01, longest_s=0.03, early_deaths=9)
    async with running(folder, make_pod("a", crash=4), policy=policy, heard=heard):
        pauses = [text.rsplit(" in ", 1)[1] for _, text in heard.events]
    assert pauses == ["0.01 s", "0.02 s", "0.03 s", "0.03 s"]


async def test_a_pod_that_never_comes_up_is_an_error_with_its_last_lines(folder: RunFolder, make_pod: MakePod) -> None:
    pids: dict[str, int] = {}
    with pytest.raises(
        RunnerError, match=r"pod bad exited 3 times before it was ready; its last lines:\n  hello from bad"
    ):
        async with running(folder, make_pod("good"), make_pod("bad", crash=99)) as runner:
            pids = runner.pids
    assert not any(exists(pid) for pid in pids.values())


async def test_a_pod_that_is_never_ready_is_given_up_after_the_timeout(folder: RunFolder, make_pod: MakePod) -> None:
    pod = make_pod("mute")
    silent = DesiredPod(pod.name, pod.role, pod.argv, pod.config, pod.config_file, HttpProbe("127.0.0.1", 1, "/health"))
    with pytest.raises(RunnerError, match=r"pod mute is idle and was not ready within 0.4 s"):
        async with running(folder, silent, policy=RestartPolicy(start_timeout_s=0.4)):
            pass


async def test_a_pod_that_computes_is_waited_for_and_says_what_it_does(folder: RunFolder, make_pod: MakePod) -> None:
    heard, policy = Heard(), RestartPolicy(start_timeout_s=1.0, progress_every_s=0.3)
    pod = make_pod("busy")
    program = "import time; print('importing much', flush=True)\nwhile time.process_time() < 2.5: pass"
    busy = replace(
        pod, argv=(sys.executable, "-c", program + "\nimport os, sys; os.execv(sys.argv[1], sys.argv[1:])", *pod.argv)
    )
    async with running(folder, busy, policy=policy, heard=heard):
        assert any("not ready after" in text and text.endswith(": importing much") for _, text in heard.events)


async def test_a_pod_that_is_misconfigured_is_not_started_again(folder: RunFolder, make_pod: MakePod) -> None:
    program = "print('backend is vllm, which cannot be imported'); raise SystemExit(2)"
    pod = replace(make_pod("wrong"), argv=(sys.executable, "-c", program))
    policy = RestartPolicy(first_s=60.0)
    with pytest.raises(RunnerError, match=r"refused its configuration.*\n  backend is vllm, which cannot be"):
        async with running(folder, pod, policy=policy):
            pass


async def test_draining_closes_the_gateway_first_then_sidecars_then_the_scheduler(
    folder: RunFolder, make_pod: MakePod, tmp_path: Path
) -> None:
    pods = (
        make_pod("scheduler", PodRole.SCHEDULER),
        make_pod("decode", PodRole.SIDECAR, linger=0.1),
        make_pod("prefill", PodRole.SIDECAR, linger=0.05),
        make_pod("gateway", PodRole.GATEWAY, linger=0.1),
    )
    async with running(folder, *pods):
        pass
    journal = (tmp_path / "journal").read_text("utf-8").split("\n")[:-1]
    assert journal[:2] == ["asked gateway", "ended gateway"]
    assert sorted(journal[2:6]) == ["asked decode", "asked prefill", "ended decode", "ended prefill"]
    assert journal[6:] == ["asked scheduler", "ended scheduler"]


async def test_a_pod_that_ignores_sigterm_is_killed_after_the_grace_period(
    folder: RunFolder, make_pod: MakePod
) -> None:
    heard = Heard()
    async with running(folder, make_pod("deaf", deaf=True), policy=RestartPolicy(grace_s=0.2), heard=heard) as runner:
        pid = runner.pids["deaf"]
    assert not exists(pid)
    assert heard.events == [("deaf", "did not exit within 0.2 s of SIGTERM; killed")]


async def test_kill_ends_a_drain_that_takes_too_long(folder: RunFolder, make_pod: MakePod) -> None:
    runner = PodRunner([make_pod("slow", linger=60.0)], folder, RestartPolicy(grace_s=60.0), Heard())
    await runner.start()
    began = time.monotonic()
    drain = asyncio.create_task(runner.drain())
    await asyncio.sleep(0.05)
    runner.kill()
    await drain
    assert time.monotonic() - began < 10
    assert runner.pids == {}


def test_a_run_begins_while_the_last_one_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which removes the folder of all runs, where the new one's is about to be."""
    base, memory = tmp_path / "runs", tmp_path / "shm"
    last, look = RunFolder.create(base, memory, "last"), runfolder.sweep_node

    def as_it_ends(node: Path) -> list[Path]:
        swept = look(node)
        last.remove()
        assert not base.exists()
        return swept

    monkeypatch.setattr(runfolder, "sweep_node", as_it_ends)
    folder = RunFolder.create(base, memory, "new")
    assert folder.path.parent == base
    folder.remove()


async def test_probes_without_an_endpoint_are_not_ready() -> None:
    assert not await ready(HttpProbe("127.0.0.1", 1, "/health"))
    assert not await ready(AttachedProbe("unix:/nonexistent/scheduler.sock", "decode-0"))


_RUNNER = """
import asyncio, json, pathlib, sys
from aegaeon_operator.podrunner import PodRunner, RestartPolicy, RunFolder
from aegaeon_operator.reconcile import DesiredPod, PodRole, SocketProbe
class Quiet:
    def output(self, pod, line): pass
    def event(self, pod, text): pass
async def main():
    path, argv, config, socket = json.loads(sys.stdin.read())
    base = pathlib.Path(path)
    folder = RunFolder.create(base / "runs", base / "shm2", "pool")
    pod = DesiredPod("a", PodRole.SIDECAR, tuple(argv), config, base / "a.json", SocketProbe(pathlib.Path(socket)))
    runner = PodRunner([pod], folder, RestartPolicy(), Quiet())
    await runner.start()
    print(runner.pids["a"], folder.path, flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


def test_kill_9_of_the_runner_leaves_no_child_and_the_next_run_removes_its_folders(
    make_pod: MakePod, tmp_path: Path
) -> None:
    (tmp_path / "shm2").mkdir()
    pod = make_pod("a")
    assert isinstance(pod.config["socket"], str)
    with subprocess.Popen(
        [sys.executable, "-c", _RUNNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as runner:
        assert runner.stdin is not None
        assert runner.stdout is not None
        runner.stdin.write(json.dumps([str(tmp_path), pod.argv, pod.config, pod.config["socket"]]))
        runner.stdin.close()
        pid, left = runner.stdout.readline().split()
        runner.kill()
    asyncio.run(eventually(lambda: not exists(int(pid))))
    assert Path(left).is_dir()
    RunFolder.create(tmp_path / "runs", tmp_path / "shm2", "pool").remove()
    assert not Path(left).exists()
    assert list((tmp_path / "shm2").iterdir()) == []
