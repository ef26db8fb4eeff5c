"""GuideLLM: a short benchmark of streamed chats as its documentation shows it; the command has its own environment."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

URL, MODEL = sys.argv[1:]
FOLDER = sys.stdin.read().strip()
REQUESTS, OUTPUT = 4, 128  # tokens enough that a client without a processor does not read an answer in one piece
environment = {**os.environ, "GUIDELLM__MAX_WORKER_PROCESSES": "1"}

with tempfile.TemporaryDirectory() as folder:
    command = [
        os.environ["GUIDELLM"], "run", "--backend", f"kind=openai_http,target={URL.removesuffix('/v1')},model={MODEL}",
        "--tokenizer", f"kind=huggingface_auto,model={FOLDER}", "--profile", "kind=concurrent,streams=2",
        "--constraint", f"kind=max_requests,count={REQUESTS}",
        "--data", f"kind=synthetic_text,prompt_tokens=32,output_tokens={OUTPUT}",
        "--output", f"kind=json,path={folder}/report.json", "--disable-console",
    ]  # fmt: skip
    subprocess.run(command, check=True, cwd=folder, env=environment)
    [benchmark] = json.loads((Path(folder) / "report.json").read_text())["benchmarks"]
metrics = benchmark["metrics"]
totals = metrics["request_totals"]
assert totals == {"successful": REQUESTS, "errored": 0, "incomplete": 0, "total": REQUESTS}, totals
assert metrics["output_token_count"]["successful"]["min"] == OUTPUT, metrics["output_token_count"]
assert metrics["prompt_token_count"]["successful"]["min"] >= 32, metrics["prompt_token_count"]
first_ms = metrics["time_to_first_token_ms"]["successful"]["mean"]
latency_ms = 1000 * metrics["request_latency"]["successful"]["mean"]
assert 0 < first_ms < latency_ms, (first_ms, latency_ms)
assert metrics["inter_token_latency_ms"]["successful"]["mean"] > 0, metrics["inter_token_latency_ms"]
