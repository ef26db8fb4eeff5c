"""The package's errors. Messages say what is wrong, where, and what to do.

SidecarError
├── ModelError          this model cannot be served; the others go on
│   ├── ConfigError     config.json
│   └── WeightsError    *.safetensors
├── FillCancelledError  reading the weights was given up on request
└── BackendError        a step or registration that breaks the backend's contract
"""


class SidecarError(Exception):
    """The root: whoever catches it catches everything this package raises on purpose."""


class ModelError(SidecarError):
    """A model directory that cannot be served. The model is Failed with this text; nothing else stops."""


class ConfigError(ModelError):
    """config.json is missing, malformed, or asks for something that is not supported."""


class WeightsError(ModelError):
    """The weight files are missing, truncated, pickled, or do not hold what config.json promises."""


class FillCancelledError(SidecarError):
    """`fill` stopped because its `cancelled` callback said so; the destination is half written."""


class BackendError(SidecarError):
    """The caller broke the backend's contract: unknown model, unbound KV shape, too short a block table."""
