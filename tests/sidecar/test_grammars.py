"""Grammars that cost too much, and processes that end, stop or are filled: other sequences go on as they were."""

from __future__ import annotations

import hashlib
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.grammar_faults import cpu_s, forked

from aegaeon_proto.constraints import proof_of
from aegaeon_proto.engine.sampling import Constraint, ConstraintKind
from aegaeon_sidecar.domain.errors import EngineError, InvalidError
from aegaeon_sidecar.sampling import Guide, Masker, SamplerState
from aegaeon_sidecar.sampling.grammar_wire import send
from aegaeon_sidecar.sampling.grammars import Grammars, Vocabulary

EOS, SIZE = 2, 400
BOMB = Constraint(ConstraintKind.JSON_SCHEMA, '{"type":"integer","multipleOf":99999999}', (EOS,), share=b"bomber")
DIGITS = Constraint(ConstraintKind.REGEX, "[0-9]+", (EOS,), share=b"innocent")


@pytest.fixture(scope="module")
def grammars() -> Iterator[Grammars]:
    made = Grammars()
    yield made
    made.stop()


@pytest.fixture
def ask(grammars: Grammars, tiny_models: dict[str, Path]) -> Callable[[Constraint], Guide]:
    vocabulary = Vocabulary(tiny_models["llama"], SIZE)
    return lambda constraint: grammars.guide(vocabulary, constraint, lambda: None)


def eventually(holds: Callable[[], bool], within_s: float = 10.0) -> bool:
    end = time.monotonic() + within_s
    while not (held := holds()) and time.monotonic() < end:
        time.sleep(0.02)
    return held


def test_what_nobody_waits_for_is_given_up_within_a_second_of_processor_time(
    ask: Callable[[Constraint], Guide],
) -> None:
    ask(DIGITS).client()
    before = forked()
    guide = ask(replace(BOMB, text=BOMB.text.replace("99999999", "99999998")))
    assert eventually(lambda: any(cpu_s(pid) > 0.05 for pid in forked() - before))
    building = forked() - before
    used = sum(map(cpu_s, building))
    del guide
    last = used
    while alive := [pid for pid in building if cpu_s(pid)]:
        last = sum(map(cpu_s, alive))
        time.sleep(0.01)
    assert last - used <= 1.0


def test_one_share_cannot_hold_every_slot(ask: Callable[[Constraint], Guide]) -> None:
    bombs = [ask(replace(BOMB, text=BOMB.text.replace("99999999", str(99999000 + i)))) for i in range(4)]
    assert ask(replace(DIGITS, text="[0-9]{3}")).client().alive
    assert not all(bomb.ready for bomb in bombs)


def test_what_no_gateway_has_proved_for_this_tokenizer_may_cost_as_much_as_a_gateway_lets_it(
    ask: Callable[[Constraint], Guide], tiny_models: dict[str, Path]
) -> None:
    digest = hashlib.sha256((tiny_models["llama"] / "tokenizer.json").read_bytes()).hexdigest()
    with pytest.raises(InvalidError, match=r"more than 0\.5 s of CPU time or 96 MiB of memory to compile"):
        ask(replace(BOMB, proof=proof_of("of another tokenizer"))).client()
    with pytest.raises(InvalidError, match="more than 2 s of CPU time or 256 MiB of memory to compile"):
        ask(replace(BOMB, proof=proof_of(digest))).client()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_process_that_was_killed_or_stopped_ends_its_own_rows_within_five_seconds(
    ask: Callable[[Constraint], Guide], how: signal.Signals
) -> None:
    masker, innocent = Masker(), SamplerState(guide=ask(DIGITS))
    victim = SamplerState(guide=ask(replace(DIGITS, text=f"[a-f]+{how.value}")))
    before = masker.masks([innocent, victim], SIZE)
    assert before is not None
    assert not before.refused
    assert victim.guide is not None
    os.kill(victim.guide.client().pid, how)
    begin = time.monotonic()
    after = masker.masks([innocent, victim, SamplerState()], SIZE)
    assert time.monotonic() - begin < 5
    assert after is not None
    assert list(after.refused) == [1]
    assert after.refused[1].ours
    assert (after.allowed[0] == before.allowed[0]).all()
    again = masker.masks([SamplerState(guide=ask(replace(DIGITS, text=f"[a-f]+{how.value}")))], SIZE)
    assert again is not None
    assert (again.allowed[0] == before.allowed[1]).all(), "the next request has a process of its own"


def test_a_process_that_is_filled_ends_its_own_rows(ask: Callable[[Constraint], Guide]) -> None:
    """Its limit of memory is lowered to what it has: the next allocation fails."""
    masker, innocent = Masker(), SamplerState(guide=ask(DIGITS))
    victim = SamplerState(guide=ask(replace(DIGITS, text="(a|b|[c-f]{3}){5,900}")))
    assert masker.masks([innocent, victim], SIZE) is not None
    assert victim.guide is not None
    resource.prlimit(victim.guide.client().pid, resource.RLIMIT_AS, (1 << 20, resource.RLIM_INFINITY))
    many = [SamplerState(guide=ask(replace(DIGITS, text="(a|b|[c-f]{3}){5,900}"))) for _ in range(400)]
    begin = time.monotonic()
    after = masker.masks([innocent, *many], SIZE)
    assert time.monotonic() - begin < 5
    assert after is not None
    assert 0 not in after.refused
    assert set(after.refused) == set(range(1, 401))


def test_without_the_process_of_the_tokenizer_its_sequences_end_and_the_next_find_another(
    tiny_models: dict[str, Path],
) -> None:
    grammars = Grammars()
    vocabulary = Vocabulary(tiny_models["llama"], SIZE)
    first = grammars.guide(vocabulary, DIGITS, lambda: None)
    os.kill(first.client().server_pid, signal.SIGKILL)
    assert eventually(lambda: not first.client().alive), "it dies with its parent, some milliseconds later"
    masks = Masker().masks([SamplerState(guide=first)], SIZE)
    assert masks is not None
    assert masks.refused[0].ours
    assert grammars.guide(vocabulary, DIGITS, lambda: None).client().alive
    grammars.stop()


def test_the_program_ends_without_a_traceback_when_its_engine_does(tiny_models: dict[str, Path]) -> None:
    """With an answer that was not read, which resets the connection."""
    here, there = socket.socketpair()
    command = [sys.executable, "-c", "from aegaeon_sidecar.sampling.grammar_process import main; main()"]
    with there:
        program = subprocess.Popen(
            [*command, str(there.fileno())], pass_fds=[there.fileno()], stderr=subprocess.PIPE, text=True
        )
    with here:
        send(here, {"file": str(tiny_models["llama"] / "tokenizer.json"), "size": SIZE, "ends": [EOS]})
        assert select.select([here], [], [], 60)[0]
    assert (program.communicate(timeout=60)[1], program.returncode) == ("", 0)


def test_an_engine_error_is_none_of_the_requests(ask: Callable[[Constraint], Guide]) -> None:
    guide = ask(replace(DIGITS, text="[7-9]"))
    client = guide.client()
    client.end()
    client.ask([(guide.number, [])])
    with pytest.raises(EngineError, match="ended from outside"):
        client.masks(1, 13)
