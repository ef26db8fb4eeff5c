"""Four tiny models of four architectures that speak, made on the spot: `aegaeon models make DIR`."""

from aegaeon_cli.models.cache import MODEL_NAMES, is_current, make_models, questions
from aegaeon_cli.models.errors import ModelsError

__all__ = ["MODEL_NAMES", "ModelsError", "is_current", "make_models", "questions"]
