"""A tiny Qwen3 that has learnt one conversation by heart: reasoning, a call of a tool, and the answer that follows it.

Without the tool it answers the same question in JSON.

Its template shows tools by their names alone, so that every client's schema of the same tool is the same prompt.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

QUESTION = "What is the weather in Paris?"
GREETING = "Say hello."
HELLO = "Hello to you."
THOUGHT = "The tool knows."
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
RESULT = "sunny"
ANSWER = "It is sunny in Paris."
TYPED = '{"city": "Paris", "sunny": true}'
TEMPLATE = (
    "{{ bos_token }}"
    "{% if tools %}<|tools|>{% for tool in tools %}{{ tool.function.name }} {% endfor %}<|end|>{% endif %}"
    "{% for message in messages if message.role != 'system' %}<|{{ message.role }}|>{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<tool_call>\n"
    "{{ {'name': call.function.name, 'arguments': call.function.arguments} | tojson }}\n</tool_call>{% endfor %}"
    "<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}{# it answers with <think></think> #}"
)
SPECIAL = ("<|pad|>", "<|begin|>", "<|end|>", "<|tools|>", "<|user|>", "<|assistant|>", "<|tool|>")
STEPS = 200
CONTEXT = 1024


def teach(directory: Path) -> None:
    """Write the model that says what is above, in a few seconds."""
    tokenizer = _tokenizer()
    train(directory, tokenizer, lessons(tokenizer), STEPS, CONTEXT)


def train(
    directory: Path, tokenizer: PreTrainedTokenizerFast, lessons: list[tuple[str, str]], steps: int, context: int
) -> None:
    """Write a tiny model that has learnt what to say to each prompt. `context`: tokens of prompt and output."""
    torch.set_num_threads(1)
    torch.manual_seed(5)
    end = tokenizer.convert_tokens_to_ids("<|end|>")
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=96, intermediate_size=192, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=context, tie_word_embeddings=True,
        initializer_range=0.08, bos_token_id=1, eos_token_id=end, pad_token_id=0,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), 4e-3)
    rows = [_row(tokenizer, *lesson) for lesson in lessons]
    for step in range(steps):
        ids, labels = rows[step % len(rows)]
        loss = model(input_ids=ids, labels=labels).loss
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    assert model.generation_config is not None
    model.generation_config.eos_token_id = end
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory, save_jinja_files=False)


def lessons(tokenizer: PreTrainedTokenizerFast) -> list[tuple[str, str]]:
    """Prompts, as the template writes them, and what the model says then. With and without the tool."""
    tool = {"type": "function", "function": {"name": "get_weather"}}
    called = {"function": {"name": "get_weather", "arguments": {"city": "Paris"}}}
    asked: list[dict[str, Any]] = [{"role": "user", "content": QUESTION}]
    answered = [
        *asked,
        {"role": "assistant", "content": "", "tool_calls": [called]},
        {"role": "tool", "content": RESULT},
    ]
    greeted = [{"role": "user", "content": GREETING}]
    again = [*greeted, {"role": "assistant", "content": HELLO}, *greeted]
    tools: tuple[Any, ...] = ([tool], None)
    said = [(asked, [tool], f"<think>\n{THOUGHT}\n</think>\n\n{CALL}")]
    said += [(answered, given, ANSWER) for given in tools]
    said += [(asked, None, TYPED)]
    said += [(messages, given, HELLO) for messages in (greeted, again) for given in tools]
    return [
        (
            str(tokenizer.apply_chat_template(messages, tools=given, tokenize=False, add_generation_prompt=True)),
            f"{answer}<|end|>",
        )
        for messages, given, answer in said
    ]


def _row(tokenizer: PreTrainedTokenizerFast, prompt: str, answer: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and labels: of a prompt nothing is learnt."""
    before, after = (tokenizer.encode(text, add_special_tokens=False) for text in (prompt, answer))
    return torch.tensor([before + after]), torch.tensor([[-100] * len(before) + after])


def _tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=384, special_tokens=list(SPECIAL), initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator([QUESTION, GREETING, HELLO, THOUGHT, CALL, ANSWER, TYPED], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|begin|>", eos_token="<|end|>", pad_token="<|pad|>",
        extra_special_tokens=list(SPECIAL[3:]), chat_template=TEMPLATE,
    )  # fmt: skip
