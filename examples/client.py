"""Streams a chat from every model of a running stack, with the official OpenAI client.

Start the stack with `aegaeon up -f examples/quickstart/`, then: python examples/client.py "What is a dictionary?"
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from urllib.parse import urlsplit

from openai import AsyncOpenAI, DefaultAsyncHttpxClient, OpenAIError


async def chat(client: AsyncOpenAI, model: str, question: str, max_tokens: int) -> None:
    """Prints the answer when it is complete, with its time to first token and its mean time between tokens."""
    began = time.monotonic()
    first = last = began
    pieces: list[str] = []
    stream = await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": question}],
        max_tokens=max_tokens,
        stream=True,
    )
    async for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            last = time.monotonic()
            first = first if pieces else last
            pieces.append(chunk.choices[0].delta.content)
    between_ms = 1000 * (last - first) / max(len(pieces) - 1, 1)
    print(f"--- {model}: first token after {1000 * (first - began):.0f} ms, then one every {between_ms:.1f} ms")
    print("".join(pieces))


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("question", nargs="?", default="Explain in one sentence what a list is.")
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1", help="base URL (default: %(default)s)")
    parser.add_argument("--model", action="append", help="ask only this model; may be given several times")
    parser.add_argument("--max-tokens", type=int, default=64)
    arguments = parser.parse_args()
    # A proxy of the environment (HTTP_PROXY) is for what is far away.
    http = DefaultAsyncHttpxClient(trust_env=urlsplit(arguments.url).hostname not in ("127.0.0.1", "localhost", "::1"))
    async with AsyncOpenAI(base_url=arguments.url, api_key="none", http_client=http) as client:
        try:
            models = arguments.model or [model.id async for model in client.models.list()]
            await asyncio.gather(*(chat(client, model, arguments.question, arguments.max_tokens) for model in models))
        except OpenAIError as error:
            sys.exit(f"{arguments.url}: {error}; is the stack running? (aegaeon up -f examples/quickstart/)")


if __name__ == "__main__":
    asyncio.run(main())
