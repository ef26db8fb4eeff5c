"""Where a model's files come from: a directory of this machine, or the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import (  # type: ignore[attr-defined]  # HTTPError is the client's own, not re-exported
    HfHubHTTPError,
    HFValidationError,
    HTTPError,
    LocalEntryNotFoundError,
)

from aegaeon_proto.v1 import model_pb2 as pb
from aegaeon_sidecar.errors import SourceError

_PATTERNS = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt")


def locate(source: pb.ModelSource, hub_cache: Path | None) -> Path:
    """A directory with config.json and weights; fetches from the hub what is not there yet. Raises SourceError."""
    if source.WhichOneof("kind") == "hub":
        return _from_hub(source.hub, hub_cache)
    directory = Path(source.directory)
    if not directory.is_absolute():
        raise SourceError(f"source.directory {str(directory)!r} is not an absolute path; write the whole path")
    if not directory.is_dir():
        raise SourceError(f"source.directory {directory} is no directory on this machine; check the path and the mount")
    return directory


def _from_hub(source: pb.HubSource, hub_cache: Path | None) -> Path:
    name = f"{source.repository} at {source.revision or 'its default branch'}"
    try:
        path = snapshot_download(
            source.repository,
            revision=source.revision or None,
            cache_dir=hub_cache,
            allow_patterns=list(_PATTERNS),
        )
    except HFValidationError as error:
        raise SourceError(f"source.hub.repository {source.repository!r} is no hub id; write owner/name") from error
    except LocalEntryNotFoundError as error:
        raise SourceError(f"{name}: the hub cannot be reached and no copy is cached; check the network") from error
    except HfHubHTTPError as error:
        status = error.response.status_code
        raise SourceError(
            f"{name}: the hub answers {status}; check the id, the revision and the access token"
        ) from error
    except HTTPError as error:
        raise SourceError(f"{name}: the connection to the hub broke: {error}; check the network") from error
    except OSError as error:
        raise SourceError(f"{name}: cannot be stored: {error}; check hub_cache and the free space") from error
    return Path(path)
