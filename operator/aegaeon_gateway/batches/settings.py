"""Where files and batches are kept, and how much of them: the key `batches` of the gateway's configuration."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

_Count = Annotated[int, Field(gt=0)]
_Seconds = Annotated[float, Field(gt=0)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Bucket(_Strict):
    """A prefix in an S3-compatible store that knows conditional writes (If-None-Match)."""

    bucket: Annotated[str, Field(min_length=1)]
    prefix: str = ""
    endpoint: str = ""
    """URL of the store; empty: AWS"""
    region: str = "us-east-1"
    credentials_file: str = ""
    """an AWS credentials file; empty: the environment's credentials, as of any AWS client"""


class BatchSettings(_Strict):
    """Exactly one of `folder` and `s3`. All gateways of a pool name the same one."""

    folder: str | None = None
    """of this machine, or one that all gateways share"""
    s3: Bucket | None = None
    file_bytes: _Count = 200 << 20
    """of one file that is uploaded"""
    lines: _Count = 50_000
    """requests of one batch"""
    tenant_files: _Count = 1000
    """of each tenant, with those that batches write; clients without a key count as one tenant"""
    tenant_bytes: _Count = 10 << 30
    """of all files of a tenant"""
    tenant_batches: _Count = 16
    """of each tenant that are not over"""
    keep_s: _Seconds = 30 * 86400.0
    """seconds that files are kept, and batches after their window"""
    in_flight: _Count = 32
    """requests of all batches that one gateway has open at a time at most; fewer while online traffic needs engines"""
    running: _Count = 4
    """batches that one gateway works on at a time"""
    defer_s: _Seconds = 60.0
    """seconds by which their tokens are due later than those of online requests: streams that are so far ahead of their
    readers lend their time"""
    failed_s: _Seconds = 600.0
    """seconds that lines wait for a model that has failed; then its error is their answer"""
    lease_s: _Seconds = 15.0
    """seconds without a sign of life after which another gateway takes a batch over"""
    look_s: _Seconds = 5.0
    """seconds between two looks for batches without a holder"""
    flush_s: _Seconds = 2.0
    """seconds after which answers are in the store: what was answered since is asked again after a crash"""

    @model_validator(mode="after")
    def _one_store(self) -> Self:
        if (self.folder is None) == (self.s3 is None):
            raise ValueError("give exactly one of folder and s3")
        return self
