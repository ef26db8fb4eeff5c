"""Typed reads of a JSON object, so that every error names the file, the field and the allowed values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from aegaeon_sidecar.domain.errors import ConfigError, ConfigMissingError
from aegaeon_sidecar.models.documents import MOST_CONFIG_BYTES, read_document

LARGEST = 1e300  # no field of a model is larger; keeps int -> float from overflowing


class Fields:
    """One JSON object of a file. Each read checks type and range and raises ConfigError; null counts as absent."""

    def __init__(self, path: Path, data: dict[str, Any], prefix: str = "") -> None:
        self.path = path
        self._data = data
        self._prefix = prefix

    @staticmethod
    def load(path: Path) -> Fields:
        """Raises ConfigError when the file is missing or is not a JSON object."""
        try:
            data = json.loads(read_document(path, MOST_CONFIG_BYTES))
        except FileNotFoundError as error:
            raise ConfigMissingError(
                f"{path}: missing; a model directory needs the config.json that transformers saves"
            ) from error
        except OSError as error:
            raise ConfigMissingError(f"{path}: cannot be read: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise ConfigMissingError(f"{path}: not JSON: {error}") from error
        if not isinstance(data, dict):
            raise ConfigError(f"{path}: holds {_kind(data)}, must be a JSON object")
        return Fields(path, data)

    def __contains__(self, name: str) -> bool:
        return self._data.get(name) is not None

    def has_key(self, name: str) -> bool:
        """The field is there, be it null."""
        return name in self._data

    def wrong(self, name: str, allowed: str) -> ConfigError:
        """The error for a field whose value is not allowed."""
        value = self._data.get(name)
        problem = "is missing" if value is None else f"is {_short(value)}"
        return ConfigError(f"{self.path}: {self._prefix}{name} {problem}; allowed: {allowed}")

    def value(self, name: str) -> Any:
        """The raw value, None when absent."""
        return self._data.get(name)

    def integer(self, name: str, default: int | None = None, minimum: int = 1, maximum: int = 2**31 - 1) -> int:
        value = self._get(name, default)
        if type(value) is not int or not minimum <= value <= maximum:
            raise self.wrong(name, f"an integer from {minimum} to {maximum}")
        return value

    def number(self, name: str, default: float | None = None, above: float = 0.0) -> float:
        value = self._get(name, default)
        if type(value) not in (int, float) or not above < value < LARGEST:
            raise self.wrong(name, f"a finite number above {above:g}")
        return float(value)

    def boolean(self, name: str, default: bool) -> bool:
        value = self._get(name, default)
        if type(value) is not bool:
            raise self.wrong(name, "true or false")
        return value

    def table(self, name: str) -> Fields:
        """The object under `name`; an empty one when absent."""
        value = self._get(name, {})
        if not isinstance(value, dict):
            raise self.wrong(name, "an object")
        return Fields(self.path, value, f"{self._prefix}{name}.")

    def _get(self, name: str, default: Any) -> Any:
        value = self._data.get(name)
        return default if value is None else value


def _kind(value: Any) -> str:
    return {list: "a list", str: "a string", bool: "a boolean", type(None): "null"}.get(type(value), "a number")


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."
