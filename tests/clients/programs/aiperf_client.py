"""AIPerf: a short load of streamed chats as its documentation shows it, with the tokenizer of the model's folder."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

URL, MODEL = sys.argv[1:]
FOLDER = sys.stdin.read().strip()
REQUESTS, OUTPUT = 4, 128  # tokens enough that a client without a processor does not read an answer in one piece
# Offline it takes a folder for a name in the cache of models.
environment = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}

with tempfile.TemporaryDirectory() as folder:
    command = [
        str(Path(sys.executable).with_name("aiperf")), "profile", "--model", MODEL, "--url", URL.removesuffix("/v1"),
        "--endpoint-type", "chat", "--streaming", "--tokenizer", FOLDER, "--request-count", str(REQUESTS),
        "--concurrency", "2", "--isl", "32", "--osl", str(OUTPUT), "--extra-inputs", "ignore_eos:true",
        "--extra-inputs", f"min_tokens:{OUTPUT}", "--workers-max", "1", "--record-processors", "1",
        "--no-gpu-telemetry", "--ui", "none", "--artifact-dir", folder,
    ]  # fmt: skip
    subprocess.run(command, check=True, cwd=folder, env=environment)
    report = json.loads((Path(folder) / "profile_export_aiperf.json").read_text())
    metrics = json.loads((Path(folder) / "server_metrics_export.json").read_text())["metrics"]
average = {name: report[name]["avg"] for name in ("time_to_first_token", "request_latency", "inter_token_latency")}
assert (report["request_count"]["avg"], report["error_summary"]) == (REQUESTS, []), report["error_summary"]
assert report["request_error_rate"]["avg"] == 0, report["request_error_rate"]
assert report["total_usage_completion_tokens"]["avg"] == REQUESTS * OUTPUT, report["total_usage_completion_tokens"]
assert report["usage_prompt_tokens"]["min"] >= 32, report["usage_prompt_tokens"]
assert 0 < average["time_to_first_token"] < average["request_latency"], average
assert average["inter_token_latency"] > 0, average
assert {"vllm:num_requests_running", "vllm:kv_cache_usage_perc"} <= metrics.keys(), metrics.keys()
