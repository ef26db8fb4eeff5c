"""While a model is baked, steps of others run in between."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from backend_vllm.families import BASE, HEAD, needs_avx512, quantise, save

from aegaeon_sidecar.backends import StepInput
from aegaeon_sidecar.backends.vllm.exclusive import EXCLUSIVE, Building, FairLock

LAYERS = 12


def test_a_thread_that_gives_the_lock_back_and_asks_again_comes_after_those_who_wait() -> None:
    lock, order, asked = FairLock(), [], threading.Event()

    def other() -> None:
        asked.set()
        with lock:
            order.append("other")

    with lock, lock:
        thread = threading.Thread(target=other)
        thread.start()
        asked.wait()
        while not lock._waiting:
            time.sleep(0.001)
    with lock:
        order.append("first again")
    thread.join()
    assert order == ["other", "first again"]


def test_between_two_items_nothing_is_set_and_others_run() -> None:
    held: list[str] = []

    @contextmanager
    def setting() -> Any:
        held.append("set")
        yield
        held.remove("set")

    def items() -> Any:
        for item in range(3):
            assert not held
            assert EXCLUSIVE._depth == 0
            yield item

    with Building(setting) as building:
        for _ in building.apart(items()):
            assert held == ["set"]
            assert EXCLUSIVE._depth == 1
    assert not held
    assert EXCLUSIVE._depth == 0


@needs_avx512
def test_steps_go_on_while_a_quantised_model_is_baked_and_stay_the_same(
    family: Any, vllm_backend: Any, rig: Any, tmp_path: Path
) -> None:
    """The longest pause between two steps is a part of the bake, whatever the machine: a layer, of many."""
    backend = vllm_backend("bfloat16")
    other = rig(backend, family("qwen3", "bfloat16"))
    other.logits([5, 6, 7], 0, [1])
    part = StepInput([7], 3, np.array([1], dtype=np.int32), None)
    expected = backend.logits(other.name, [part])
    made = save("LlamaConfig", BASE | HEAD | {"num_hidden_layers": LAYERS}, tmp_path / "whole", "bfloat16")
    model = quantise("gptq", made, tmp_path / "gptq")
    ends: list[float] = []
    equal: list[bool] = []
    stop = threading.Event()

    def steps() -> None:
        while not stop.is_set():
            equal.append(torch.equal(backend.logits(other.name, [part]), expected))
            ends.append(time.perf_counter())

    thread = threading.Thread(target=steps)
    thread.start()
    begin = time.perf_counter()
    try:
        assert backend.describe(model, 0).bake is not None
    finally:
        end = time.perf_counter()
        stop.set()
        thread.join()
    moments = [begin, *(moment for moment in ends if begin < moment < end), end]
    assert max(np.diff(moments)) < 0.5 * (end - begin)
    assert len(moments) > LAYERS
    assert all(equal)
