"""Tables of rotary embeddings, which models of one kind share: tens of MB each. vLLM keeps all that there ever were;
here they go with the last model that uses them."""

from __future__ import annotations

from typing import Any
from weakref import WeakValueDictionary


class Tables(WeakValueDictionary[Any, Any]):
    """A replacement for vLLM's dictionary, which vLLM asks for a table before it takes it. Not thread-safe."""

    def __contains__(self, key: object) -> bool:
        self._found = self.get(key)  # stays until it is taken
        return self._found is not None

    def __getitem__(self, key: Any) -> Any:
        table, self._found = super().__getitem__(key), None
        return table
