"""The tiny models: their text, their tokenizer, and the cache of the result. Training is cut to a few steps here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aegaeon_cli.models import MODEL_NAMES, is_current, make_models, questions
from aegaeon_cli.models.errors import ForeignError, TextError
from aegaeon_cli.models.text import LESSON, entries, lesson, prose
from aegaeon_gateway.workers.model import load


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    directory, lines = tmp_path_factory.mktemp("cache") / "models", list[str]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("aegaeon_cli.models.training.STEPS", 12)
        patch.setattr("aegaeon_cli.models.training.WARM_UP", 2)
        make_models(directory, lines.append)
    return directory, lines


def test_prose_ends_at_the_first_example() -> None:
    assert prose("Return x.\n\nMore\nof it.\n\n>>> f(1)\n1\n\nTail.") == "Return x. More of it."


def test_every_lesson_is_another_choice_of_well_formed_entries() -> None:
    text = entries()
    lessons = [lesson(text, seed) for seed in (11, 22)]
    assert [len(chosen) for chosen in lessons] == [LESSON, LESSON]
    assert set(lessons[0]) != set(lessons[1])
    assert all(entry.answer.isascii() and "\n" not in entry.answer for entry in text)


def test_a_python_without_its_sources_is_named(tmp_path: Path) -> None:
    with pytest.raises(TextError, match="install the full standard library"):
        entries(tmp_path)


def test_the_training_lowers_the_loss(made: tuple[Path, list[str]]) -> None:
    for name in MODEL_NAMES:
        losses = [float(line.rpartition("loss ")[2]) for line in made[1] if line.startswith(f"{name}:")]
        assert losses[-1] < losses[0]


def test_transformers_loads_what_was_made(made: tuple[Path, list[str]]) -> None:
    from aegaeon_cli.demo.verify import chat_ids, load_model, load_tokenizer

    shapes = set()
    for name in MODEL_NAMES:
        config = load_model(made[0] / name).config
        shapes.add((config.num_hidden_layers, config.num_key_value_heads, config.head_dim))
        tokenizer = load_tokenizer(made[0] / name)
        text = "Größe 🙂 = f(x)\n\tzwei"
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text
        prompt = tokenizer.decode(chat_ids(made[0] / name, "What?"))
        assert prompt == "<|begin|><|user|>What?<|end|><|assistant|>"
        assert config.max_position_embeddings >= 2048
    assert len(shapes) >= 2


def test_a_question_is_the_same_tokens_to_the_gateway_and_to_the_check(made: tuple[Path, list[str]]) -> None:
    from aegaeon_cli.demo.verify import chat_ids

    for name, asked in questions(made[0]).items():
        text = load(made[0] / name)
        for question in asked:
            prompt = text.render([{"role": "user", "content": question}])
            assert text.encode(prompt, special=False).tolist() == chat_ids(made[0] / name, question)


def test_the_chat_template_is_in_the_tokenizers_configuration(made: tuple[Path, list[str]]) -> None:
    for name in MODEL_NAMES:
        assert "messages" in json.loads((made[0] / name / "tokenizer_config.json").read_text())["chat_template"]


def test_a_second_call_makes_nothing_and_knows_the_questions(made: tuple[Path, list[str]]) -> None:
    lines: list[str] = []
    before = (made[0] / "llama" / "model.safetensors").stat().st_mtime_ns
    make_models(made[0], lines.append)
    assert lines == [f"models are in {made[0]} already"]
    assert (made[0] / "llama" / "model.safetensors").stat().st_mtime_ns == before
    assert set(questions(made[0])) == set(MODEL_NAMES)


def test_a_damaged_folder_is_not_current(made: tuple[Path, list[str]], tmp_path: Path) -> None:
    manifest = json.loads((made[0] / "manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    assert is_current(made[0])
    assert not is_current(tmp_path)


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ForeignError, match="something else"):
        make_models(tmp_path, print)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_nothing_half_made_is_left_when_the_training_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aegaeon_cli.models.training.entries", lambda: entries(tmp_path))
    with pytest.raises(TextError):
        make_models(tmp_path / "models", print)
    assert list(tmp_path.iterdir()) == []
