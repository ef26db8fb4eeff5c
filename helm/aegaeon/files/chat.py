"""`helm test`: streams a chat from a gateway; without a gateway's URL, checks the operator's health."""

import json
import os
import sys
import urllib.request

DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a pod's proxy does not reach Services


def main() -> None:
    gateway = os.environ.get("GATEWAY")
    if not gateway:
        with DIRECT.open(os.environ["OPERATOR"], timeout=10) as answer:
            print(f"the operator answers {answer.status}; set test.url to test a model as well")
        return
    model = os.environ.get("MODEL") or json.load(ask(gateway, "/v1/models"))["data"][0]["id"]
    body = {"model": model, "stream": True, "max_tokens": 16, "messages": [{"role": "user", "content": "Hello"}]}
    text = "".join(words(ask(gateway, "/v1/chat/completions", body)))
    print(f"{model} answers: {text!r}")
    sys.exit(0 if text else "the answer is empty")


def ask(gateway, path, body=None):
    headers = {"Content-Type": "application/json"}
    if key := os.environ.get("KEY"):
        headers["Authorization"] = f"Bearer {key}"
    data = json.dumps(body).encode() if body else None
    return DIRECT.open(urllib.request.Request(gateway + path, data, headers), timeout=60)


def words(lines):
    for line in lines:
        if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
            for choice in json.loads(line[6:])["choices"]:
                yield choice["delta"].get("content") or ""


main()
