"""The package's errors. Messages say what is wrong, where, and what to do.

SidecarError
├── ModelError          this model cannot be served; the others go on
│   ├── ConfigError     config.json
│   │   ├── ConfigMissingError  it is not there, or cannot be read
│   │   └── UnsupportedError    a kind of model that this version does not serve
│   │       └── LethalError         engines that compute it are ended by a signal
│   └── WeightsError    *.safetensors
│       ├── FilesMissingError   one is not there
│       ├── FilesChangedError   they are not as they were when they were last looked at
│       ├── OtherWeightsError   they hold something else than what was served
│       └── UnreadableError     the system cannot read them
├── SuspectError        a model may have ended an engine, and has to wait until another has run without it
├── FillCancelledError  reading the weights was given up on request
├── BackendError        a step or registration that breaks the backend's contract
├── DeviceLostError     the device takes no more work: the process ends, its successor begins with a fresh one
├── SettingsError       the --config file
├── CacheFullError      the node's host cache cannot hold a model's weights
├── SourceError         a model's files could not be fetched from where the catalog says they are
├── DiskFullError       the disk tier has no room for a model's files
│   └── TooLargeError       nor would it have if it were empty
├── MemoryBookError     the memory's books do not balance: a defect of this package
└── CommandError        a command cannot be carried out; reported, and dependants are skipped
    ├── NoMemoryError   the grant or the tier is too small; nothing changed
    ├── UnknownError    unknown model, sequence or handle
    │   └── AbsentError     the model's files have made room for others
    ├── StaleError      an older epoch
    ├── CancelledError  given up on request
    ├── InvalidError    what a request asks for cannot be computed; names the parameter
    └── EngineError     anything else
"""


class SidecarError(Exception):
    """The root: to catch it is to catch everything this package raises on purpose."""


class ModelError(SidecarError):
    """A model directory that cannot be served. The model is Failed with this text; nothing else stops."""


class ConfigError(ModelError):
    """config.json is missing, malformed, or asks for something that is not supported."""


class ConfigMissingError(ConfigError):
    """The folder or its config.json is not there, or not readable (yet): what the model is is not known."""


class UnsupportedError(ConfigError):
    """A kind of model that this version does not serve: the same files fail again, however often they are tried."""


class LethalError(UnsupportedError):
    """Engines that computed this model were ended by a signal, more than once."""


class WeightsError(ModelError):
    """The weight files are missing, truncated, pickled, or do not hold what config.json promises."""


class FilesMissingError(WeightsError):
    """A file that was there is there no more."""


class FilesChangedError(WeightsError):
    """A file's size, inode or times differ; whether its bytes do is not known."""


class OtherWeightsError(WeightsError):
    """The model was served with other weights, or with another config.json, than the files hold."""


class UnreadableError(WeightsError):
    """The disk or the mount has a fault: the same files may be readable again without a change."""


class SuspectError(SidecarError):
    """A model was there when a signal ended an engine, and another one as well."""


class FillCancelledError(SidecarError):
    """`fill` stopped because its `cancelled` callback said so; the destination is half written."""


class BackendError(SidecarError):
    """The caller broke the backend's contract: unknown model, unbound KV shape, too short a block table."""


class DeviceLostError(SidecarError):
    """A device whose context is broken, as by an assertion in a kernel: nothing that is launched there will run."""


class SettingsError(SidecarError):
    """The configuration file cannot be read, or a field of it is wrong."""


class CacheFullError(SidecarError):
    """A model does not fit into host_cache_bytes beside the models that are in use."""


class SourceError(SidecarError):
    """The hub, the server or the directory does not give the model's files, or gives wrong ones. `retry_after_s`: the
    server wants not to be asked before; 0 where it does not say."""

    def __init__(self, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class DiskFullError(SidecarError):
    """The budget of the disk tier, or the disk itself, has no room for a model's files: a state of the node, not of
    the model."""


class TooLargeError(DiskFullError):
    """The files of one model are larger than the whole budget of the disk tier."""


class MemoryBookError(SidecarError):
    """Slabs or blocks are lost or owned twice."""


class CommandError(SidecarError):
    """The root of what a single command can fail with; everything is as if it had not been sent."""


class NoMemoryError(CommandError):
    """Too few slabs granted or free."""


class UnknownError(CommandError):
    """Names a model, sequence or handle that is not here."""


class AbsentError(UnknownError):
    """The model was evicted from the disk tier since it was reported: it has to be fetched first."""


class StaleError(CommandError):
    """Speaks for an epoch that is over."""


class CancelledError(CommandError):
    """The scheduler sent Cancel, or closed the sequence, while the command ran."""


class InvalidError(CommandError):
    """A request that no engine can compute. The message begins with the parameter, as clients know it."""


class EngineError(CommandError):
    """The backend or the system failed."""
