"""Models from S3 stores: the same as from web servers, against a store that runs as a process of its own."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sidecar.test_sources import contents, obtain
from sidecar.web import FILES, outbound, quick_tier

from aegaeon_proto.v1 import model_pb2 as mpb
from aegaeon_sidecar.errors import SourceError
from aegaeon_sidecar.weights.boundary import Guarded
from aegaeon_sidecar.weights.s3 import S3Remote
from aegaeon_sidecar.weights.sources import remote_of


@pytest.fixture(scope="module")
def s3() -> Iterator[Any]:
    """A client of a store that runs as a process of its own."""
    pytest.importorskip("moto", reason="needs moto and flask-cors, the S3 server of the tests")
    pytest.importorskip("flask_cors", reason="needs moto and flask-cors, the S3 server of the tests")
    boto3 = pytest.importorskip("boto3", reason="needs boto3")
    with subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"], stderr=subprocess.PIPE, text=True
    ) as server:
        assert server.stderr is not None
        address = next(line for line in server.stderr if "Running on" in line).split()[-1]
        reader = threading.Thread(target=server.stderr.read)
        reader.start()
        patch = pytest.MonkeyPatch()
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "test")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        client = boto3.client("s3", endpoint_url=address)
        client.create_bucket(Bucket="models")
        yield client
        patch.undo()
        server.terminate()
        reader.join()


def bucket(s3: Any, prefix: str, name: str = "models", endpoint: str = "", file: str = "") -> Guarded:
    source = mpb.S3Source(bucket=name, prefix=prefix, endpoint=endpoint or s3.meta.endpoint_url, credentials_file=file)
    return remote_of(mpb.ModelSource(s3=source), outbound().client(), ambient=False)


def upload(s3: Any, prefix: str, files: dict[str, bytes] = FILES, **options: str) -> None:
    for name, data in files.items():
        s3.put_object(Bucket="models", Key=f"{prefix}/{name}", Body=data, **options)


def test_a_prefix_of_a_bucket_is_fetched_and_checked(s3: Any, folder: Path) -> None:
    upload(s3, "a", FILES | {"notes.md": b"no file of a model"}, ChecksumAlgorithm="SHA256")
    remote = bucket(s3, "a")
    assert {file.name: file.sha256 for file in remote.files()} == {
        name: hashlib.sha256(data).hexdigest() for name, data in FILES.items()
    }
    stored = obtain(quick_tier(folder), remote)
    assert contents(stored) == FILES
    stored.close()


class Interrupted(S3Remote):
    """A store whose answers break off after a while."""

    def read(self, file: Any, start: int) -> Iterator[bytes]:
        yield next(iter(super().read(file, start)))[:700_000]


def test_an_interrupted_fetch_from_a_bucket_goes_on_where_it_stopped(s3: Any, folder: Path) -> None:
    upload(s3, "b")
    source = mpb.S3Source(bucket="models", prefix="b/", endpoint=s3.meta.endpoint_url)
    seen: list[int] = []
    client = outbound().client()
    remote = Guarded("s3:models", client, "", lambda: Interrupted(source, client, ambient=False))
    stored = obtain(quick_tier(folder), remote, lambda done, total: seen.append(done))
    assert contents(stored) == FILES
    assert seen == sorted(set(seen))
    stored.close()


def test_bytes_of_a_bucket_that_do_not_hash_as_promised_are_refused(s3: Any, folder: Path) -> None:
    upload(s3, "c", FILES | {"SHA256SUMS": f"{'1' * 64}  config.json\n".encode()})
    with pytest.raises(SourceError, match=r"config\.json: its sha256 is .*, 1{64} was promised"):
        obtain(quick_tier(folder), bucket(s3, "c"))


def test_what_a_store_does_not_have_is_said(s3: Any, folder: Path) -> None:
    with pytest.raises(SourceError, match="no file of a model is there; check bucket and prefix"):
        obtain(quick_tier(folder), bucket(s3, "nothing"))
    missing = bucket(s3, "x", name="none")
    with pytest.raises(SourceError, match=r"NoSuchBucket.*check bucket, prefix and credentials"):
        obtain(quick_tier(folder), missing)
    away = bucket(s3, "x", endpoint="http://127.0.0.1:9")
    with pytest.raises(SourceError, match="cannot be reached"):
        obtain(quick_tier(folder), away)
