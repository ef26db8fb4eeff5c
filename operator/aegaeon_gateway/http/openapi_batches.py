"""Files and batches, for the OpenAPI description."""

from __future__ import annotations

from aegaeon_gateway.http.openapi_shapes import COUNT, STRING, Json, fields, nullable

_STATUS: Json = {
    "enum": [
        "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled",
    ]
}  # fmt: skip
ID: Json = {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,128}$"}
FORM: Json = {
    "type": "object",
    "properties": {
        "file": {"type": "string", "format": "binary"},
        "purpose": {"const": "batch"},
        "expires_after[anchor]": {"const": "created_at"},
        "expires_after[seconds]": {"type": "integer", "minimum": 3600, "maximum": 2592000},
    },
    "required": ["file", "purpose"],
}
"""of an upload"""


def answers() -> dict[str, Json]:
    """Schemas by name."""
    file = fields(
        id=STRING, object={"const": "file"}, bytes=COUNT, created_at=COUNT, expires_at=COUNT, filename=STRING,
        purpose={"enum": ["batch", "batch_output"]}, status={"const": "processed"}, status_details={"type": "null"},
    )  # fmt: skip
    deleted = fields(id=STRING, object={"const": "file"}, deleted={"const": True})
    return {
        "File": file,
        "DeletedFile": deleted,
        "FileList": _page(file),
        "Batch": _batch(),
        "BatchList": _page(_batch()),
    }


def _batch() -> Json:
    fault = fields(code=STRING, message=STRING, param=nullable(STRING), line=nullable(COUNT))
    faults = fields(object={"const": "list"}, data={"type": "array", "items": fault})
    ends = {f"{state}_at": nullable(COUNT) for state in ("cancelled", "completed", "expired", "failed")}
    return fields(
        id=STRING, object={"const": "batch"}, endpoint=STRING, errors=nullable(faults), input_file_id=STRING,
        completion_window=STRING, status=_STATUS, output_file_id=nullable(STRING), error_file_id=nullable(STRING),
        created_at=COUNT, in_progress_at=nullable(COUNT), expires_at=COUNT, finalizing_at=nullable(COUNT),
        cancelling_at=nullable(COUNT), request_counts=fields(total=COUNT, completed=COUNT, failed=COUNT),
        metadata=nullable({"type": "object"}), **ends,
    )  # fmt: skip


def _page(entry: Json) -> Json:
    return fields(
        object={"const": "list"}, data={"type": "array", "items": entry}, first_id=nullable(STRING),
        last_id=nullable(STRING), has_more={"type": "boolean"},
    )  # fmt: skip
