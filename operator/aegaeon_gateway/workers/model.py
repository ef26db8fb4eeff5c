"""Tokenizer and chat template of one model as transformers has them, in a process with limits."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeGuard

from msgspec.structs import replace

from aegaeon_gateway.dialects.families import detected
from aegaeon_gateway.errors import InvalidRequestError, TokenizerError
from aegaeon_gateway.text.decoders import stages_of
from aegaeon_gateway.workers.bounds import check_added, check_decoder, check_files, check_size, check_vocabulary
from aegaeon_gateway.workers.files import tokenizer_of
from aegaeon_gateway.workers.grammars import Compiler, NeedsGrammarsError, compiler_of
from aegaeon_gateway.workers.wire import Job, Loaded
from aegaeon_proto.pooling import PoolingError, Purpose, purpose_of, read_documents
from aegaeon_proto.sampling import DEFAULTS, MAX_STOP_IDS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_CONFIG_FILES = ["config.json", "generation_config.json"]
_MAX_EOS_IDS = MAX_STOP_IDS - 128  # clients may name 128 more
# Parameters of apply_chat_template that are no variables of the template.
_RESERVED = {
    *("add_generation_prompt", "chat_template", "continue_final_message", "conversation", "max_length", "messages"),
    *("padding", "return_assistant_tokens_mask", "return_dict", "return_tensors", "tokenize", "tokenizer_kwargs"),
    *("sanitize_control_tokens", "tools", "truncation"),
}
_GENERIC_CLASSES = {"PreTrainedTokenizerFast", "TokenizersBackend"}


class ModelText:
    """Everything about one model that concerns text."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, directory: Path, made_of: bytes = b"") -> None:
        """`made_of`: see tokenizer_of."""
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise TokenizerError("no fast tokenizer; add a tokenizer.json")
        backend.no_truncation()
        backend.no_padding()
        check_size(backend.get_vocab_size(with_added_tokens=False), _positive(_text_config(directory), "vocab_size"))
        self.made_of = made_of
        self._hf = tokenizer
        self._backend = backend
        self.size: int = backend.get_vocab_size(with_added_tokens=True)
        self.eos_ids = _eos_ids(tokenizer, directory)
        self.max_positions = _positions(directory)
        self.defaults = _sampling_defaults(directory)
        self._template = _template_of(tokenizer)
        self.dialect = detected(self._template)
        self.has_score_template = all(self._names_role(role) for role in ("query", "document"))
        self._documents = read_documents(directory)
        self._directory = directory
        self._compiler: Compiler | None = None
        self._described: tuple[Loaded, bytes] | None = None
        self.hidden_size = _positive(_json(directory / "config.json"), "hidden_size")

    def purpose(self, job: Job) -> Purpose:
        """The model's purpose. Raises InvalidRequestError for what is not served."""
        try:
            return purpose_of(self._documents, job.task)
        except PoolingError as error:
            message = f"The model {job.model!r} cannot be used: {error}"
            raise InvalidRequestError(message, param="model", code="unsupported_model") from error

    @property
    def compiler(self) -> Compiler:
        """The compiler of grammars. Raises NeedsGrammarsError while they were not read."""
        if self._compiler is None:
            raise NeedsGrammarsError
        return self._compiler

    def read_grammars(self) -> None:
        """Have what compiles grammars, which models that are never asked for any do without."""
        most = _positive(_text_config(self._directory), "vocab_size")
        self._compiler = compiler_of(self._directory, max(self.size, most), self.eos_ids)

    def drop_grammars(self) -> None:
        """Until they are read again."""
        self._compiler = None

    def _names_role(self, role: str) -> bool:
        return f"'{role}'" in self._template or f'"{role}"' in self._template

    def knows(self, variable: str) -> bool:
        """True when the chat template mentions a variable."""
        return variable in self._template

    def render(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        generation_prompt: bool = True,
        continued: bool = False,
        tools: Sequence[dict[str, Any]] = (),
        variables: Mapping[str, Any] = MappingProxyType({}),
    ) -> str:
        """Apply the chat template. Raises InvalidRequestError when it refuses the messages or there is none.

        `generation_prompt`: the beginning of an answer comes last; `continued`: the last message is left open;
        `variables`: what else the template gets.
        """
        if reserved := sorted(_RESERVED & variables.keys()):
            message = f"chat_template_kwargs: {reserved[0]} cannot be given to a chat template"
            raise InvalidRequestError(message, param="chat_template_kwargs", code="invalid_value")
        if not self._hf.chat_template:
            raise InvalidRequestError(
                "This model has no chat template; use /v1/completions.", param="messages", code="no_chat_template"
            )
        try:
            rendered = self._hf.apply_chat_template(
                list(messages),
                tools=list(tools) or None,
                tokenize=False,
                add_generation_prompt=generation_prompt,
                continue_final_message=continued,
                **variables,
            )
            text = str(rendered)
            text.encode()  # half a surrogate pair, which JSON can spell, is no text for a tokenizer
            return text
        except MemoryError:
            raise
        except Exception as error:  # a template is an untrusted program: it may raise anything
            message = f"The model's chat template refuses these messages: {str(error)[:500]}"
            raise InvalidRequestError(message, param="messages", code="chat_template") from error

    def encode(self, text: str, *, special: bool) -> array[int]:
        """Token ids of `text`; `special`: with what the tokenizer puts around a text (BOS)."""
        return array("I", self._backend.encode(text, add_special_tokens=special).ids)

    def encode_pair(self, first: str, second: str) -> array[int]:
        """Two texts as the tokenizer joins them."""
        return array("I", self._backend.encode(first, second).ids)

    def cut(self, text: str, tokens: int | None) -> str:
        """The beginning of a text, so many tokens of it; none or 0: all of it."""
        if not tokens:
            return text
        offsets = self._backend.encode(text, add_special_tokens=False).offsets
        return text if len(offsets) <= tokens else text[: offsets[tokens - 1][1]]

    def name(self, token: int) -> str:
        """A token as the vocabulary spells it."""
        return str(self._backend.id_to_token(token) or "")

    def decode(self, tokens: Sequence[int], *, skip_special: bool = True) -> str:
        """The text of a whole token list."""
        return str(self._backend.decode(list(tokens), skip_special_tokens=skip_special))

    def described(self, key: bytes) -> tuple[Loaded, bytes]:
        """The part that the gateway needs of it, with the tokens' strings. Raises TokenizerError when it may not run
        there."""
        self._described = self._described or self._describe()
        loaded, strings = self._described
        return replace(loaded, key=key, max_positions=self.max_positions), strings

    def _describe(self) -> tuple[Loaded, bytes]:
        """The same of its tokenizer alone."""
        own = self._backend.decoder
        decoder = None if own is None else json.loads(own.__getstate__())  # to_str() would write the vocabulary too
        check_decoder(decoder)
        stages_of(decoder)  # what the gateway cannot decode fails here, before this fork takes over
        vocabulary = self._backend.get_vocab(with_added_tokens=True)
        check_vocabulary(vocabulary.items())
        strings, ends = _table(vocabulary)
        added = self._backend.get_added_tokens_decoder()
        check_added(len(added))
        loaded = Loaded(
            key=b"",
            ends=ends,
            special=sorted(token for token, content in added.items() if content.special),
            added=sorted(added),
            decoder=json.dumps(decoder),
            max_positions=0,
            tokenizer=self.made_of,
        )
        return loaded, strings

    def like(self, directory: Path) -> ModelText:
        """The text of another model with the same tokenizer, which both have from here on. Raises TokenizerError."""
        other = ModelText(self._hf, directory, self.made_of)
        other._described = self._described
        return other


def load(directory: Path, loaded: Iterable[ModelText] = ()) -> ModelText:
    """`loaded`: texts that may have the same tokenizer. Raises TokenizerError."""
    if not directory.is_dir():
        raise TokenizerError("no such folder")
    try:
        check_files(directory)
        made_of = tokenizer_of(directory)
        twin = next((text for text in loaded if text.made_of == made_of), None)
        return twin.like(directory) if twin else ModelText(_tokenizer(directory), directory, made_of)
    except (MemoryError, TokenizerError):
        raise
    except PoolingError as error:
        raise TokenizerError(str(error)) from error
    except Exception as error:  # untrusted files: tokenizers raises Exception itself, and large numbers overflow
        raise TokenizerError(f"the tokenizer cannot be loaded: {str(error)[:500]}") from error


def _table(vocabulary: dict[str, int]) -> tuple[bytes, bytes]:
    """All tokens' strings by id, one after another, and where each ends, from 0 on, four bytes each."""
    spelled = [b""] * (max(vocabulary.values(), default=-1) + 1)
    for text, token in vocabulary.items():
        spelled[token] = text.encode()
    return b"".join(spelled), array("I", accumulate(map(len, spelled), initial=0)).tobytes()


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


def _template_of(tokenizer: PreTrainedTokenizerBase) -> str:
    """The chat template; where there are several by name, all of them."""
    template: Any = tokenizer.chat_template
    return "\n".join(map(str, template.values())) if isinstance(template, dict) else str(template or "")


def _eos_ids(tokenizer: PreTrainedTokenizerBase, directory: Path) -> tuple[int, ...]:
    """Every id that ends an answer: of generation_config.json, config.json and the tokenizer. Raises TokenizerError."""
    ids: set[int] = set()
    for name in _CONFIG_FILES:
        value = _json(directory / name).get("eos_token_id")
        for token in value if isinstance(value, list) else [] if value is None else [value]:
            if not _is_int(token) or not 0 <= token < 2**32:
                raise TokenizerError(f"{name}: eos_token_id must be token ids, or a list of them")
            ids.add(token)
    if isinstance(tokenizer.eos_token_id, int):
        ids.add(tokenizer.eos_token_id)
    if len(ids) > _MAX_EOS_IDS:
        raise TokenizerError(f"eos_token_id names {len(ids)} tokens; {_MAX_EOS_IDS} are allowed")
    return tuple(sorted(ids))


def _sampling_defaults(directory: Path) -> dict[str, float]:
    """The sampling that the model's makers recommend, by parameter.

    Raises TokenizerError for a value that no request may ask for: to put another in its place would change answers.
    """
    path = directory / "generation_config.json"
    config = _json(path)
    defaults = {name: config[name] for name in DEFAULTS if config.get(name) is not None}
    for name, value in defaults.items():
        integer = name == "top_k"
        if not (_is_int(value) or (isinstance(value, float) and not integer)):
            raise TokenizerError(f"{path.name}: {name} must be {'an integer' if integer else 'a number'}")
        if not DEFAULTS[name].holds(value) and not (integer and value == -1):
            raise TokenizerError(f"{path.name}: {name} must be a number {DEFAULTS[name]}")
    return {name: float(value) for name, value in defaults.items()}


def _positions(directory: Path) -> int:
    """Tokens that config.json allows; 0 when it does not say."""
    return _positive(_json(directory / "config.json"), "max_position_embeddings")


def _text_config(directory: Path) -> Mapping[str, Any]:
    """The settings of the text model within a model that is more than text."""
    config = _json(directory / "config.json")
    part = config.get("text_config")
    return part if isinstance(part, dict) else config


def _positive(config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    return value if _is_int(value) and 0 < value < 2**31 else 0


def _is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        data = json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"{path.name}: not valid JSON: {error}") from error
    return data if isinstance(data, dict) else {}
