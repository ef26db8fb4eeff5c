"""The torch backend on a GPU: the tokens of a CPU in float32, and in bfloat16 the same bits alone and in company."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.utils.dlpack import from_dlpack

from aegaeon_native import BlockPool, CudaDevice, Range, SlabPool
from aegaeon_proto.engine.sampling import SamplingParams
from aegaeon_sidecar.backends import StepInput
from aegaeon_sidecar.backends.draws import numbers, pick
from aegaeon_sidecar.backends.graphs import cuda_graphs
from aegaeon_sidecar.backends.torch import TorchBackend
from aegaeon_sidecar.domain.errors import BackendError
from aegaeon_sidecar.models.placement import Layout
from aegaeon_sidecar.sampling import SamplerState

pytestmark = pytest.mark.gpu
SLAB = 2 << 20
PROMPT = [int(token) for token in np.random.default_rng(7).integers(6, 384, size=60)]


@dataclass
class Placed:
    """A tiny model in slabs of the GPU."""

    backend: TorchBackend
    layout: Layout
    pool: SlabPool
    weights: Range
    blocks: BlockPool

    def load(self, image: NDArray[np.uint8]) -> None:
        self.weights.map(0, self.pool.take(self.weights.slabs))
        from_dlpack(self.weights.dlpack(0, image.nbytes)).copy_(torch.from_numpy(image))
        torch.cuda.synchronize()

    def unload(self) -> None:
        torch.cuda.synchronize()
        self.pool.give(self.weights.unmap(0, self.weights.slabs))


def image_of(directory: Path, layout: Layout) -> NDArray[np.uint8]:
    """The bytes of the weights as the range holds them."""
    from safetensors.torch import load_file

    image = np.zeros(layout.weight_bytes, dtype=np.uint8)
    tensors = {name: tensor for file in directory.glob("*.safetensors") for name, tensor in load_file(file).items()}
    for place in layout.tensors:
        data = tensors[place.name].to(torch.bfloat16 if "bfloat16" in layout.kv_shape else torch.float32)
        image[place.offset : place.offset + place.nbytes] = data.contiguous().view(torch.uint8).flatten().numpy()
    return image


def placed(gpu: CudaDevice, directory: Path, dtype: str) -> tuple[Placed, NDArray[np.uint8]]:
    backend = TorchBackend(device="cuda:0", dtype=dtype)
    layout = backend.describe(directory, 0)
    pool = SlabPool.cuda(gpu, SLAB, 32)
    weights = Range(pool, -(-layout.weight_bytes // SLAB))
    blocks = BlockPool(pool, layout.kv_block_bytes, 16)
    backend.register("model", directory, layout, weights.dlpack(0, layout.weight_bytes))
    backend.bind_kv(layout.kv_shape, blocks.dlpack())
    return Placed(backend, layout, pool, weights, blocks), image_of(directory, layout)


def generate(model: Placed, lengths: list[int], seeds: list[int], steps: int) -> list[list[int]]:
    """Prefill a prefix of PROMPT each, then decode together, a step launched before the last one's tokens are read."""
    samplers = [SamplerState(SamplingParams(temperature=0.9 if seed else 0.0, seed=seed)) for seed in seeds]
    size = model.layout.kv_block_tokens
    tables = [model.blocks.allocate(-(-(length + steps) // size), 16) for length in lengths]
    for length, table in zip(lengths, tables, strict=True):
        model.backend.logits("model", [StepInput(PROMPT[: length - 1], 0, table, None)])
    outputs: list[list[int]] = [[] for _ in lengths]
    before = None
    for step in range(steps + 1):
        launched = None
        if step < steps:
            first = before is None
            parts = [
                StepInput([PROMPT[n - 1]] if first else (), n - 1 + step, table, sampler, None if first else row)
                for row, (n, table, sampler) in enumerate(zip(lengths, tables, samplers, strict=True))
            ]
            launched = model.backend.launch("model", parts, before)
        if before is not None:
            for sampler, output, sampled in zip(samplers, outputs, before.results(), strict=True):
                assert sampled is not None
                sampler.accept(sampled.token)
                output.append(sampled.token)
        before = launched
    for table in tables:
        model.blocks.release(table)
    return outputs


@pytest.mark.parametrize("architecture", ["llama", "mistral", "qwen2", "qwen3"])
def test_float32_logits_are_those_of_the_cpu(gpu: CudaDevice, tiny_models: dict[str, Path], architecture: str) -> None:
    model, image = placed(gpu, tiny_models[architecture], "float32")
    model.load(image)
    table = model.blocks.allocate(4, 16)
    cpu = TorchBackend()
    cpu.register("model", tiny_models[architecture], model.layout, image)
    cpu.bind_kv(model.layout.kv_shape, np.zeros(64 * model.layout.kv_block_bytes, dtype=np.uint8))
    for tokens, position in ((PROMPT[:30], 0), (PROMPT[30:40], 30), (PROMPT[40:41], 40)):
        part = StepInput(tokens, position, table, None)
        here, there = cpu.logits("model", [part]), model.backend.logits("model", [part]).cpu()
        torch.testing.assert_close(there, here, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_bfloat16_tokens_are_the_same_alone_and_in_a_batch(
    gpu: CudaDevice, tiny_models: dict[str, Path], architecture: str
) -> None:
    model, image = placed(gpu, tiny_models[architecture], "bfloat16")
    model.load(image)
    lengths, seeds = [5, 17, 33, 48, 2], [0, 1, 2, 0, 4]
    shared = generate(model, lengths, seeds, 20)
    alone = [generate(model, [n], [seed], 20)[0] for n, seed in zip(lengths, seeds, strict=True)]
    assert shared == alone


def test_bfloat16_tokens_are_the_same_in_passes_of_few_rows_and_of_many(
    gpu: CudaDevice, tiny_models: dict[str, Path]
) -> None:
    model, image = placed(gpu, tiny_models["llama"], "bfloat16")
    model.load(image)
    lengths, seeds = [2 + at for at in range(20)], [at % 3 for at in range(20)]
    shared = generate(model, lengths, seeds, 8)
    alone = [generate(model, [n], [seed], 8)[0] for n, seed in zip(lengths, seeds, strict=True)]
    assert shared == alone


def test_a_later_chunk_without_a_mask_gives_the_logits_of_the_whole_prompt(
    gpu: CudaDevice, tiny_models: dict[str, Path]
) -> None:
    model, image = placed(gpu, tiny_models["llama"], "bfloat16")
    model.load(image)
    whole, cut = model.blocks.allocate(4, 16), model.blocks.allocate(4, 16)
    expected = model.backend.logits("model", [StepInput(PROMPT, 0, whole, None)])
    model.backend.logits("model", [StepInput(PROMPT[:32], 0, cut, None)])
    logits = model.backend.logits("model", [StepInput(PROMPT[32:], 32, cut, None)])
    torch.testing.assert_close(logits, expected, rtol=5e-2, atol=5e-2)


def test_draws_without_sorting_are_those_of_the_host(gpu: CudaDevice) -> None:
    """But for draws next to an edge, which differ by the rounding of exponentials."""
    random = np.random.default_rng(1)
    filters = [(0, 1.0, 0.0), (40, 1.0, 0.0), (0, 0.9, 0.0), (50, 0.8, 0.02)]
    samplers = [
        SamplerState(SamplingParams(temperature=0.9, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed))
        for seed in range(64)
        for top_k, top_p, min_p in filters
    ]
    logits = torch.from_numpy(random.normal(scale=3.0, size=(len(samplers), 32000)).astype(np.float32))
    rules = torch.from_numpy(numbers(samplers, [0] * len(samplers)))
    here, there = pick(logits, rules), pick(logits.cuda(), rules.cuda()).cpu()
    assert int((here != there).sum()) <= 1


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_graph_of_the_second_gpu_is_captured_while_the_first_is_current(gpu: CudaDevice) -> None:
    device = torch.device("cuda:1")
    total, one = torch.zeros(1, device=device), torch.ones(1, device=device)
    replay = cuda_graphs(device)(lambda: total.add_(one))
    replay()
    replay()
    assert float(total) == 3.0  # once before the capture, which runs nothing


def test_graphs_are_captured_behind_the_last_that_was_dropped_and_leave_what_torch_keeps(gpu: CudaDevice) -> None:
    device = torch.device("cuda:0")
    total, unit = torch.zeros(1, device=device), torch.ones(1, device=device)
    torch.empty(64 << 20, dtype=torch.uint8, device=device)  # given back to torch, which keeps it
    reserved = torch.cuda.memory_reserved(device)
    capture = cuda_graphs(device)
    for passes in (2.0, 4.0, 6.0):  # once each before a capture, which runs nothing
        replay = capture(lambda: total.add_(unit * 1.0))
        replay()
        assert float(total) == passes
        del replay
    assert torch.cuda.memory_reserved(device) >= reserved


def test_a_graph_stays_valid_through_evictions_and_loads(gpu: CudaDevice, tiny_models: dict[str, Path]) -> None:
    model, image = placed(gpu, tiny_models["qwen2"], "bfloat16")
    model.load(image)
    first = generate(model, [9, 30], [0, 3], 12)
    held = model.pool.take(3)  # so that the next load gets other slabs
    for _ in range(3):
        model.unload()
        model.load(image)
        assert generate(model, [9, 30], [0, 3], 12) == first
    model.pool.give(held)
    model.pool.check()


def test_first_steps_ahead_leave_no_graph_to_capture(gpu: CudaDevice, tiny_models: dict[str, Path]) -> None:
    """As engine/warm_up.py runs them: rows of one token, all on one block that no sequence has."""
    model, image = placed(gpu, tiny_models["llama"], "bfloat16")
    model.load(image)
    lengths, seeds = [2 + at for at in range(20)], [at % 3 for at in range(20)]
    expected = generate(model, lengths, seeds, 8)
    warmed, image = placed(gpu, tiny_models["llama"], "bfloat16")
    warmed.load(image)
    block = warmed.blocks.allocate(1, 16)
    for least in warmed.backend.captured:
        warmed.backend.launch("model", [StepInput((0,), 0, block, None)] * least).results()
    warmed.blocks.release(block)
    decodes = warmed.backend._shells["model"].decodes
    assert decodes is not None
    graphs = {shape: graph.replay for shape, graph in decodes._graphs.items()}
    assert graphs
    assert generate(warmed, lengths, seeds, 8) == expected
    assert {shape: graph.replay for shape, graph in decodes._graphs.items()} == graphs


@pytest.mark.parametrize("sampler", [None, SamplerState()])
def test_a_step_completes_when_its_kernels_have_and_not_before(
    gpu: CudaDevice, tiny_models: dict[str, Path], sampler: SamplerState | None
) -> None:
    model, image = placed(gpu, tiny_models["llama"], "bfloat16")
    model.load(image)
    table = model.blocks.allocate(4, 16)
    torch.cuda._sleep(1_000_000_000)  # about half a second in front of the step
    launched = model.backend.launch("model", [StepInput(PROMPT[:30], 0, table, sampler)])
    launched.results()
    assert torch.cuda.current_stream().query()


@pytest.mark.parametrize("sampler", [SamplerState(), SamplerState(SamplingParams(temperature=0.9, top_p=0.9, seed=1))])
def test_a_decode_is_launched_without_waiting_for_the_device(
    gpu: CudaDevice, tiny_models: dict[str, Path], sampler: SamplerState
) -> None:
    model, image = placed(gpu, tiny_models["llama"], "bfloat16")
    model.load(image)
    part = [StepInput(PROMPT[:1], 0, model.blocks.allocate(4, 16), sampler)]
    model.backend.step("model", part)  # captures the graph
    torch.cuda._sleep(1_000_000_000)
    launched = model.backend.launch("model", part)
    assert not torch.cuda.current_stream().query()
    launched.results()
    assert torch.cuda.current_stream().query()


def test_a_step_that_fails_leaves_no_kernel_behind(gpu: CudaDevice, tiny_models: dict[str, Path]) -> None:
    model, image = placed(gpu, tiny_models["llama"], "bfloat16")
    model.load(image)
    torch.cuda._sleep(1_000_000_000)
    with pytest.raises(BackendError):
        model.backend.launch("model", [StepInput(PROMPT[:30], 0, np.array([1 << 20], dtype=np.int32), None)])
    assert torch.cuda.current_stream().query()
