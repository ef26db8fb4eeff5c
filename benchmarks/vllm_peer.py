"""vLLM's own engine in a process of its own: what benchmarks.vllm_engine sets our engine beside.

`python -m benchmarks.vllm_peer DIRECTORY DTYPE ADAPTER...`. Each line of input, `BATCH PROMPT NEW ADAPTERS`, is a batch
of so many random prompts of that length and so many new tokens each, all with adapters or none; the answer is a line
with its CPU seconds and its seconds.
"""

from __future__ import annotations

import os
import sys
import time

SETTINGS = {"enforce_eager": True, "enable_prefix_caching": False, "max_num_seqs": 16, "max_model_len": 1024}
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CONFIGURE_LOGGING": "0",
    "VLLM_PLUGINS": "",
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
}


def main(directory: str, dtype: str, *adapters: str) -> None:
    os.environ.update(ENVIRONMENT)
    import torch
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    lora = {"enable_lora": True, "max_loras": len(adapters), "max_lora_rank": 8} if adapters else {}
    llm = LLM(model=directory, dtype=dtype, skip_tokenizer_init=True, **SETTINGS, **lora)
    named = [LoRARequest(path, number, path) for number, path in enumerate(adapters, 1)]
    assert torch.get_num_threads() == 1
    print("ready", flush=True)
    for line in sys.stdin:
        batch, prompt, new, some = map(int, line.split())
        params = SamplingParams(temperature=0, max_tokens=new, ignore_eos=True, detokenize=False)
        prompts = [{"prompt_token_ids": [(7 * i + k) % 1000 for k in range(prompt)]} for i in range(batch)]
        began, cpu = time.perf_counter(), time.process_time()
        outputs = llm.generate(prompts, params, use_tqdm=False, lora_request=named[:some] or None)
        cpu_s, wall_s = time.process_time() - cpu, time.perf_counter() - began
        assert [len(one.outputs[0].token_ids) for one in outputs] == [new] * batch
        print(cpu_s, wall_s, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
