"""Tiny random models with real tokenizers, made once per session: what every test that needs a model directory uses.

torch and transformers are imported only when a test asks for a model.
"""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from aegaeon_native.libraries import lower_libraries

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # tests share the machine; threads that wait for each other do not
lower_libraries(os.environ)

ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3")
SPECIAL_TOKENS = ["<pad>", "<s>", "</s>", "<|user|>", "<|assistant|>", "<|end|>"]
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
CORPUS = [
    "The quick brown fox jumps over the lazy dog.",
    "Tokens are scheduled one by one, and no reader notices the difference.",
    "Ein Satz mit Umlauten: Größe, Übung, Ärger; 数字 and emoji 🙂 as well.",
    "def step(batch): return [sample(logits) for logits in forward(batch)]",
]
VOCAB_SIZE = 384

# One shape per architecture, different in what tends to go wrong: head counts, head size, tying, block size.
SHAPES: dict[str, dict[str, Any]] = {
    "llama": {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "tie_word_embeddings": True},
    "mistral": {"num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 32, "sliding_window": None},
    "qwen2": {"num_attention_heads": 4, "num_key_value_heads": 4, "tie_word_embeddings": False},
    "qwen3": {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 16, "tie_word_embeddings": True},
}

ModelFactory = Callable[..., Path]


@pytest.fixture
def sockets() -> Iterator[Path]:
    """A folder for unix sockets: paths of pytest's own name the user and the test, and may be too long."""
    from aegaeon_operator.podrunner.sockets import SocketFolder

    with SocketFolder.create() as folder:
        yield folder.path


def pytest_configure(config: pytest.Config) -> None:
    if config.pluginmanager.hasplugin("xdist"):  # tests of a GPU run on machines that lack it
        from side_by_side import SideBySide

        config.pluginmanager.register(SideBySide())


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected lives as long as the run: no garbage collection has to look at it, now or later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def _tokenizer(directory: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>", chat_template=CHAT_TEMPLATE
    )
    fast.save_pretrained(directory)


def _model(architecture: str, dtype: str, seed: int, overrides: dict[str, Any]) -> Any:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    settings = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "vocab_size": VOCAB_SIZE,
        "max_position_embeddings": 256,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "initializer_range": 0.2,  # the usual 0.02 gives nearly flat logits, and flat logits hide mistakes
        **SHAPES.get(architecture, {}),
        **overrides,
    }
    config = AutoConfig.for_model(architecture, **settings)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        for name, parameter in model.named_parameters():
            if name.endswith(("bias", "norm.weight", "layernorm.weight")):  # else zeros and ones: nothing to get wrong
                torch.nn.init.normal_(parameter, mean=0.0 if name.endswith("bias") else 1.0, std=0.2)
    return model.to(getattr(torch, dtype))


@pytest.fixture(scope="session")
def make_model(tmp_path_factory: pytest.TempPathFactory) -> ModelFactory:
    """make_model("qwen3", dtype="bfloat16", shard="40KB", seed=1, num_hidden_layers=3) -> its directory.

    Saved by transformers: config.json, generation_config.json, *.safetensors and a byte-level BPE tokenizer with a
    chat template. Weights are random, from `seed`; `shard` splits them into several files; everything else goes into
    the config. The same call gives the same directory: treat it as read-only.
    """
    made: dict[str, Path] = {}
    pattern = tmp_path_factory.mktemp("tokenizer")
    _tokenizer(pattern)

    def make(architecture: str, *, dtype: str = "float32", seed: int = 0, shard: str = "1GB", **config: Any) -> Path:
        key = repr((architecture, dtype, seed, shard, sorted(config.items(), key=repr)))
        if key not in made:
            directory = tmp_path_factory.mktemp(architecture)
            _model(architecture, dtype, seed, config).save_pretrained(directory, max_shard_size=shard)
            for file in pattern.iterdir():
                (directory / file.name).write_bytes(file.read_bytes())
            made[key] = directory
        return made[key]

    return make


@pytest.fixture
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes of a GPU's decodes have 4 rows instead of 16 or 64: Triton's interpreter computes one after the other."""
    monkeypatch.setattr("aegaeon_sidecar.backends.torch.decodes.ROWS", (4,))


NAN_TOKEN = 300
"""In a `nan_model`, what a sequence with this token computes from there on is not a number."""
FATAL_TOKEN = 301
"""What engines of tests that die of a token die of; a `nan_model` chooses neither by itself."""


@pytest.fixture(scope="session")
def nan_model(make_model: ModelFactory, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A qwen2 like any other, but that one token's embedding is NaN: a damaged file, or a bad update of weights."""
    from safetensors.torch import load_file, save_file

    source, directory = make_model("qwen2", max_position_embeddings=2048), tmp_path_factory.mktemp("nan")
    for file in source.iterdir():
        (directory / file.name).write_bytes(file.read_bytes())
    tensors = load_file(directory / "model.safetensors")
    tensors["model.embed_tokens.weight"][NAN_TOKEN] = float("nan")
    tensors["lm_head.weight"][[NAN_TOKEN, FATAL_TOKEN]] = 0.0
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def _copy(source: Path, directory: Path, **config: Any) -> Path:
    """A model's files in another folder, with these fields of config.json."""
    for file in source.iterdir():
        (directory / file.name).write_bytes(file.read_bytes())
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **config}))
    return directory


@pytest.fixture(scope="session")
def embedder(make_model: ModelFactory, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen3 as sentence-transformers saves an embedder: the last token's hidden state, normalised."""
    directory = _copy(make_model("qwen3"), tmp_path_factory.mktemp("embedder"), is_matryoshka=True)
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds.items()]
    (directory / "modules.json").write_text(json.dumps(modules))
    (directory / "1_Pooling").mkdir()
    pooling = {"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False, "include_prompt": True}
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return directory


@pytest.fixture(scope="session")
def headless(embedder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedder saved as the decoder alone."""
    from safetensors.torch import load_file, save_file

    directory = tmp_path_factory.mktemp("headless")
    (directory / "1_Pooling").mkdir()
    for file in (path for path in embedder.rglob("*") if path.is_file()):
        (directory / file.relative_to(embedder)).write_bytes(file.read_bytes())
    config = json.loads((embedder / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "architectures": ["Qwen3Model"]}))
    tensors = load_file(embedder / "model.safetensors")
    inner = {name.removeprefix("model."): tensor for name, tensor in tensors.items() if name != "lm_head.weight"}
    save_file(inner, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


@pytest.fixture(scope="session")
def reranker(make_model: ModelFactory, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen3 that tells how relevant a document is: a classifier with one label."""
    import torch
    from safetensors.torch import load_file, save_file

    labels = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    architecture = ["Qwen3ForSequenceClassification"]
    directory = _copy(make_model("qwen3"), tmp_path_factory.mktemp("reranker"), architectures=architecture, **labels)
    tensors = load_file(directory / "model.safetensors")
    tensors.pop("lm_head.weight", None)
    tensors["score.weight"] = torch.randn(1, 64, generator=torch.Generator().manual_seed(3)) * 0.2
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


@pytest.fixture(scope="session")
def tiny_models(make_model: ModelFactory) -> dict[str, Path]:
    """The directories of four tiny float32 models, by architecture: llama, mistral, qwen2, qwen3."""
    return {architecture: make_model(architecture) for architecture in ARCHITECTURES}
