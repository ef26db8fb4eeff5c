"""`aegaeon top`: the picture of a pool, and where it is read from."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import grpc
import pytest
from click.testing import CliRunner
from rich.console import Console

from aegaeon_cli.main import main
from aegaeon_cli.pool_view import PoolView, bar
from aegaeon_cli.welcome import curl, phase_text, wait_for_models, welcome
from aegaeon_proto.v1 import gateway_pb2_grpc
from aegaeon_proto.v1.engine_pb2 import Memory, OutsideSlabs, PrefixReuse, Role, SuspectDevice
from aegaeon_proto.v1.gateway_pb2 import InstanceStatus, ModelTraffic, PoolStatus, SequenceStatus, StatusRequest
from aegaeon_proto.v1.model_pb2 import ModelPhase, SeqId


def pool(
    uptime_s: float = 10.0, tokens: int = 100, busy_s: float = 5.0, reason: str = "group of llama is due"
) -> PoolStatus:
    decode = InstanceStatus(
        instance="decode-0",
        role=Role.ROLE_DECODE,
        alive=True,
        resident=["llama", "qwen2"],
        running="llama",
        loading="mistral",
        slabs=40,
        memory=Memory(slabs_free=10, reuse=PrefixReuse(prompt_tokens=80, device_tokens=15, host_tokens=5)),
        sequences=3,
        switches=7,
        loads=9,
        busy_s=busy_s,
        reason=reason,
    )
    llama = ModelTraffic(
        model="llama",
        phase=ModelPhase.MODEL_PHASE_CACHED,
        queued=2,
        running=3,
        requests=11,
        output_tokens=tokens,
        tokens_on_time=tokens // 2,
        switches=4,
        stall_s=0.008,
    )
    broken = ModelTraffic(model="broken", phase=ModelPhase.MODEL_PHASE_FAILED, reason="no config.json")
    sequence = SequenceStatus(
        seq=SeqId(request="chat-0123456789", choice=1),
        model="llama",
        instance="decode-0",
        state="decode",
        output_tokens=42,
    )
    gone = InstanceStatus(instance="prefill-0", role=Role.ROLE_PREFILL, alive=False)
    return PoolStatus(
        pool="quickstart",
        uptime_s=uptime_s,
        policy="paper",
        instances=[gone, decode],
        models=[llama, broken],
        sequences=[sequence],
    )


def drawn(view: PoolView, status: PoolStatus) -> str:
    console = Console(file=StringIO(), width=160, color_system=None)
    console.print(view.show(status))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def row(picture: str, first: str) -> list[str]:
    (line,) = [line for line in picture.splitlines() if line.strip("│ ").startswith(first)]
    return line.strip("│ ").split()


def test_engines_show_what_runs_what_loads_and_how_full_they_are() -> None:
    cells = row(drawn(PoolView(), pool()), "decode-0 ")
    assert cells[:5] == ["decode-0", "decode", "llama", "mistral", "qwen2"]
    assert cells[5:7] == ["█" * 6 + "░" * 2, "30/40"]
    assert cells[7:] == ["3", "7", "25%", "50%"]
    assert row(drawn(PoolView(), pool()), "prefill-0")[1] == "gone"


def test_an_engine_that_leaves_its_gpu_alone_has_a_line() -> None:
    status = pool()
    assert "alone" not in drawn(PoolView(), status)
    status.suspects.append(SuspectDevice(instance="decode-1", uuid="5f1c", error="CUDA error 700", losses=2))
    assert "decode-1: does not use GPU 5f1c, lost 2 times: CUDA error 700" in drawn(PoolView(), status)


def test_memory_beside_the_slabs_is_shown_and_the_remedy_where_it_is_more_than_is_reserved() -> None:
    status = pool()
    assert "outside slabs" not in drawn(PoolView(), status)
    status.instances[1].memory.outside.CopyFrom(OutsideSlabs(reserved_bytes=900 << 20, peak_bytes=600 << 20))
    assert "outside slabs up to 600 MiB, 900 MiB reserved (decode-0)" in drawn(PoolView(), status)
    status.instances[1].memory.outside.peak_bytes = 901 << 20
    assert "decode-0: outside slabs up to 901 MiB, 900 MiB reserved; raise spec.memory.outsideSlabs" in drawn(
        PoolView(), status
    )


def test_models_show_queue_tokens_stall_and_attainment_or_why_they_failed() -> None:
    picture = drawn(PoolView(), pool())
    assert row(picture, "llama") == ["llama", "cached", "2", "3", "11", "100", "10", "4", "2.0", "ms", "50.0%"]
    assert row(picture, "broken ")[:2] == ["broken", "failed"]
    assert row(picture, "broken:")[1:] == ["failed:", "no", "config.json"]


def test_an_adapter_that_failed_is_shown_with_its_reason() -> None:
    status = pool()
    failed = status.adapters.add(phase=ModelPhase.MODEL_PHASE_FAILED, reason="of another base", parent="llama")
    failed.spec.name = "poet"
    assert row(drawn(PoolView(), status), "poet:")[1:] == ["failed:", "of", "another", "base"]
    assert "  poet    failed: of another base\n" in welcome(status, "http://127.0.0.1:8000", 3.0)


def test_rates_cover_the_time_since_the_last_refresh() -> None:
    view = PoolView()
    drawn(view, pool())
    picture = drawn(view, pool(uptime_s=12.0, tokens=150, busy_s=6.9))
    assert row(picture, "llama")[6] == "25"
    assert row(picture, "decode-0 ")[-1] == "95%"


def test_decisions_are_listed_newest_first_and_only_when_new() -> None:
    view = PoolView()
    drawn(view, pool(reason="first"))
    drawn(view, pool(reason="first"))
    picture = drawn(view, pool(uptime_s=11.0, reason="second"))
    assert picture.count("first") == 1
    assert picture.index("second") < picture.index("first")


def test_sequences_show_their_tokens() -> None:
    cells = row(drawn(PoolView(), pool()), "t-0123456789/1")
    assert cells == ["t-0123456789/1", "llama", "decode-0", "decode", "0", "42", "0.0", "s"]


@pytest.mark.parametrize(("used", "filled"), [(0, 0), (1, 1), (50, 10), (99, 20), (100, 20)])
def test_a_bar_never_hides_what_is_used(used: int, filled: int) -> None:
    assert bar(used, 100, 20) == "█" * filled + "░" * (20 - filled)
    assert bar(0, 0, 20) == "░" * 20
    assert bar(5, 20, 10, kept=5) == "███▒▒░░░░░"


class Scheduler(gateway_pb2_grpc.FrontendServicer):
    """A real gRPC server that says one thing."""

    def Status(self, request: StatusRequest, context: grpc.ServicerContext) -> Iterator[PoolStatus]:
        yield pool()


@pytest.fixture
def address() -> Iterator[str]:
    from concurrent.futures import ThreadPoolExecutor

    server = grpc.server(ThreadPoolExecutor(2))
    gateway_pb2_grpc.add_FrontendServicer_to_server(Scheduler(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(0).wait()


def test_top_once_prints_the_pool_at_an_address(address: str) -> None:
    result = CliRunner().invoke(main, ["top", "--once", "--run", address], env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.output
    assert "pool quickstart · policy paper · up 10.0 s" in result.output
    assert "group of llama is due" in result.output


def test_top_reports_an_address_without_an_answer() -> None:
    result = CliRunner().invoke(main, ["top", "--once", "--run", "127.0.0.1:1"])
    assert result.exit_code == 2
    assert "Error: the scheduler at 127.0.0.1:1 does not answer (UNAVAILABLE); is it running?" in result.output


def test_top_reports_that_nothing_runs_here(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["top"], env={"XDG_RUNTIME_DIR": str(tmp_path)})
    assert result.exit_code == 2
    assert "no run found in" in result.output


def test_up_greets_with_the_models_and_a_curl_to_paste(address: str) -> None:
    text = welcome(asyncio.run(wait_for_models(address, 5.0)), "http://127.0.0.1:8000", 3.0)
    assert "ready in 3.0 s: http://127.0.0.1:8000/v1" in text
    assert "  llama   cached\n  broken  failed: no config.json\n" in text
    assert curl("http://127.0.0.1:8000", "llama") in text


def test_a_model_being_fetched_shows_its_progress() -> None:
    model = ModelTraffic(phase=ModelPhase.MODEL_PHASE_FETCHING, bytes_done=25, bytes_total=200)
    assert phase_text(model) == "fetching 12 %"
    model.bytes_per_s, model.remaining_s = 80e6, 9.4
    assert phase_text(model) == "fetching 12 %, 80 MB/s, 9 s to go"


def test_models_that_no_two_engines_serve_are_named() -> None:
    status = pool()
    status.models[0].phase, status.models[0].reason = ModelPhase.MODEL_PHASE_UNSPECIFIED, "no engine decodes it"
    assert "llama: not served: no engine decodes it" in drawn(PoolView(), status)


def test_a_scheduler_that_is_late_says_so_above_the_engines() -> None:
    status = pool()
    assert "late" not in drawn(PoolView(), status)
    status.lag_s, status.intake = 0.13, 7
    assert "130 ms late, 7 requests wait for that" in drawn(PoolView(), status)
