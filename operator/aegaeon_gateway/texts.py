"""Tokenizers and chat templates as transformers has them, loaded in threads and kept.

transformers is imported in a thread beside the start: it takes a second, and nothing else here needs it.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from jinja2.exceptions import TemplateError

from aegaeon_gateway.detokenize import Vocabulary
from aegaeon_gateway.errors import InvalidRequestError, TokenizerError
from aegaeon_gateway.remote import fetch
from aegaeon_proto.credentials import CredentialsError, token_of
from aegaeon_proto.sampling import DEFAULTS, MAX_STOP_IDS
from aegaeon_proto.v1.gateway_pb2 import ModelStatus
from aegaeon_proto.v1.model_pb2 import ModelPhase, ModelSource

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_TOKENIZER_FILES = ["tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab*", "merges.txt", "*.jinja"]
_CONFIG_FILES = ["config.json", "generation_config.json"]
_MAX_EOS_IDS = MAX_STOP_IDS - 128  # clients may name 128 more
_GENERIC_CLASSES = {"PreTrainedTokenizerFast", "TokenizersBackend"}
# transformers finds its classes at first use, and not safely in several threads at once.
_TRANSFORMERS = threading.Lock()
_LONG_TEXT = 8192  # characters; longer texts are tokenized in a thread, so that no stream waits for them


class ModelText:
    """Everything about one model that concerns text."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, directory: Path) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise TokenizerError(f"{directory}: no fast tokenizer; add a tokenizer.json")
        backend.no_truncation()
        backend.no_padding()
        self._hf = tokenizer
        self._backend = backend
        self.vocabulary = Vocabulary(backend)
        self.eos_ids = _eos_ids(tokenizer, directory)
        self.max_positions = _positions(directory)
        self.defaults = _sampling_defaults(directory)

    def render(self, messages: Sequence[dict[str, Any]]) -> str:
        """Apply the chat template. Raises InvalidRequestError when it refuses the messages or there is none."""
        if not self._hf.chat_template:
            raise InvalidRequestError(
                "This model has no chat template; use /v1/completions.", param="messages", code="no_chat_template"
            )
        try:
            return str(self._hf.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True))
        except (TemplateError, TypeError, ValueError, LookupError, AttributeError) as error:
            message = f"The model's chat template refuses these messages: {error}"
            raise InvalidRequestError(message, param="messages", code="chat_template") from error

    async def encode(self, text: str, *, special: bool) -> list[int]:
        """Token ids of `text`; `special`: with what the tokenizer puts around a text (BOS)."""
        if len(text) < _LONG_TEXT:
            return self._encode(text, special)
        return await asyncio.to_thread(self._encode, text, special)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of a whole token list, special tokens left out."""
        return str(self._backend.decode(list(tokens), skip_special_tokens=True))

    def _encode(self, text: str, special: bool) -> list[int]:
        ids: list[int] = self._backend.encode(text, add_special_tokens=special).ids
        return ids


class Tokenizers:
    """One ModelText per source. A model that failed to load is tried again at its next request."""

    def __init__(self, hub_cache: str | None, fetched: str | None = None) -> None:
        self._hub_cache = hub_cache
        self._fetched = fetched
        self._loading: dict[bytes, asyncio.Task[ModelText]] = {}

    async def get(self, source: ModelSource) -> ModelText:
        """Raises TokenizerError."""
        return await asyncio.shield(self._task(source))

    def keep(self, models: Sequence[ModelStatus]) -> None:
        """Load ahead what the catalog serves (once its files are there) and drop what it does not serve any more."""
        failed = ModelPhase.MODEL_PHASE_FAILED  # when it is mended, its texts may be others
        keys = {_key(model.spec.source) for model in models if model.phase != failed}
        for key in self._loading.keys() - keys:
            del self._loading[key]
        for model in models:
            if model.phase == ModelPhase.MODEL_PHASE_CACHED:
                self._task(model.spec.source)

    def _task(self, source: ModelSource) -> asyncio.Task[ModelText]:
        """The loading of a source, begun unless it is loaded or loading."""
        key = _key(source)
        task = self._loading.get(key)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = asyncio.create_task(asyncio.to_thread(self._load, source))
            task.add_done_callback(_observe)
            self._loading[key] = task
        return task

    def _load(self, source: ModelSource) -> ModelText:
        try:
            directory = _directory(source, self._hub_cache, self._fetched)
        except CredentialsError as error:
            raise TokenizerError(str(error)) from error
        if not directory.is_dir():
            raise TokenizerError(f"{directory}: no such folder")
        try:
            with _TRANSFORMERS:
                return ModelText(_tokenizer(directory), directory)
        except (OSError, ValueError, LookupError, TypeError, AttributeError, ImportError) as error:
            raise TokenizerError(f"{directory}: the tokenizer cannot be loaded: {error}") from error


def warm() -> None:
    """Import what loading a tokenizer needs, so that no first request waits for it."""
    with _TRANSFORMERS:
        from transformers import PreTrainedTokenizerFast as _  # noqa: F401 - imported for its cost alone


def _tokenizer(directory: Path) -> PreTrainedTokenizerBase:
    """tokenizer.json as it is, where the model declares the generic class; else as AutoTokenizer gives it.

    AutoTokenizer imports torch, and for some types of models it takes a class of its own in place of the generic one,
    which cuts text in another way than the model was trained with.
    """
    generic = _json(directory / "tokenizer_config.json").get("tokenizer_class") in _GENERIC_CLASSES
    if generic and (directory / "tokenizer.json").is_file():
        from transformers import PreTrainedTokenizerFast

        loader: Any = PreTrainedTokenizerFast
    else:
        from transformers import AutoTokenizer

        loader = AutoTokenizer
    tokenizer: PreTrainedTokenizerBase = loader.from_pretrained(
        directory, local_files_only=True, trust_remote_code=False
    )
    return tokenizer


def _key(source: ModelSource) -> bytes:
    return source.SerializeToString(deterministic=True)


def _observe(task: asyncio.Task[ModelText]) -> None:
    """A failure of a preload is told to the next request, not to the log of lost exceptions."""
    if not task.cancelled():
        task.exception()


def _directory(source: ModelSource, hub_cache: str | None, fetched: str | None) -> Path:
    kind = source.WhichOneof("kind")
    if kind == "hub":
        return _from_hub(source, hub_cache)
    if kind in ("s3", "http"):
        if fetched is None:
            raise TokenizerError(f"source.{kind} needs a folder for its tokenizer; set fetched in the configuration")
        return fetch(source, Path(fetched))
    return Path(source.directory)


def _from_hub(source: ModelSource, hub_cache: str | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        path = snapshot_download(
            source.hub.repository,
            revision=source.hub.revision or None,
            cache_dir=hub_cache,
            token=token_of(source.hub.credentials_file) or None,  # None: the environment's
            allow_patterns=_TOKENIZER_FILES + _CONFIG_FILES,
        )
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        raise TokenizerError(f"{source.hub.repository}: the tokenizer cannot be fetched: {error}") from error
    return Path(path)


def _eos_ids(tokenizer: PreTrainedTokenizerBase, directory: Path) -> tuple[int, ...]:
    """Every id that ends an answer: of generation_config.json, config.json and the tokenizer. Raises TokenizerError."""
    found: set[int] = set()
    for name in _CONFIG_FILES:
        value = _json(directory / name).get("eos_token_id")
        for token in value if isinstance(value, list) else [] if value is None else [value]:
            if not _is_int(token) or not 0 <= token < 2**32:
                raise TokenizerError(f"{directory / name}: eos_token_id must be token ids, or a list of them")
            found.add(token)
    if isinstance(tokenizer.eos_token_id, int):
        found.add(tokenizer.eos_token_id)
    if len(found) > _MAX_EOS_IDS:
        raise TokenizerError(f"{directory}: eos_token_id names {len(found)} tokens; {_MAX_EOS_IDS} are allowed")
    return tuple(sorted(found))


def _sampling_defaults(directory: Path) -> dict[str, float]:
    """The sampling that the model's makers recommend, by parameter.

    Raises TokenizerError for a value that no request may ask for: to put another in its place would change answers.
    """
    path = directory / "generation_config.json"
    config = _json(path)
    said = {name: config[name] for name in DEFAULTS if config.get(name) is not None}
    for name, value in said.items():
        integer = name == "top_k"
        if not (_is_int(value) or (isinstance(value, float) and not integer)):
            raise TokenizerError(f"{path}: {name} must be {'an integer' if integer else 'a number'}")
        if not DEFAULTS[name].holds(value) and not (integer and value == -1):
            raise TokenizerError(f"{path}: {name} must be a number {DEFAULTS[name]}")
    return {name: float(value) for name, value in said.items()}


def _positions(directory: Path) -> int:
    """Tokens that config.json allows; 0 when it does not say."""
    value = _json(directory / "config.json").get("max_position_embeddings")
    return value if _is_int(value) and 0 < value < 2**31 else 0


def _is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        data = json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"{path}: not valid JSON: {error}") from error
    return data if isinstance(data, dict) else {}
