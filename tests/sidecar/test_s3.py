"""Models from S3 stores: the same as from web servers, against a store that runs as a process of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from local_servers import s3_server
from real_proxy import real_proxy, through_proxy
from sidecar.test_sources import contents, obtain
from sidecar.web import FILES, outbound, quick_tier

from aegaeon_proto.engine.catalog import S3Source
from aegaeon_proto.outbound.client import Outbound
from aegaeon_proto.outbound.egress import Egress
from aegaeon_proto.outbound.policy import Policy
from aegaeon_sidecar.domain.errors import SourceError
from aegaeon_sidecar.weights.boundary import Guarded
from aegaeon_sidecar.weights.s3 import S3Remote
from aegaeon_sidecar.weights.sources import remote_of


@pytest.fixture(scope="module")
def s3() -> Iterator[Any]:
    """A client of a store that runs as a process of its own."""
    boto3 = pytest.importorskip("boto3", reason="needs boto3")
    with s3_server() as address, pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "test")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        client = boto3.client("s3", endpoint_url=address)
        client.create_bucket(Bucket="models")
        yield client


@pytest.fixture(autouse=True)
def keys(folder: Path) -> Path:
    """What a Secret would hold."""
    file = folder / "keys"
    file.write_text("[default]\naws_access_key_id = test\naws_secret_access_key = test-secret\n")
    return file


def bucket(s3: Any, prefix: str, keys: Path | str, *, name: str = "models", endpoint: str = "") -> Guarded:
    source = S3Source(bucket=name, prefix=prefix, endpoint=endpoint or s3.meta.endpoint_url, credentials_file=str(keys))
    return remote_of(source, outbound().client(), ambient=False)


def upload(s3: Any, prefix: str, files: dict[str, bytes] = FILES, **options: str) -> None:
    for name, data in files.items():
        s3.put_object(Bucket="models", Key=f"{prefix}/{name}", Body=data, **options)


def test_a_prefix_of_a_bucket_is_fetched_and_checked(s3: Any, folder: Path, keys: Path) -> None:
    upload(s3, "a", FILES | {"notes.md": b"no file of a model"}, ChecksumAlgorithm="SHA256")
    remote = bucket(s3, "a", keys)
    assert {file.name: file.sha256 for file in remote.files()} == {
        name: hashlib.sha256(data).hexdigest() for name, data in FILES.items()
    }
    stored = obtain(quick_tier(folder), remote)
    assert contents(stored) == FILES
    stored.close()


def test_an_empty_file_of_a_bucket_is_fetched(s3: Any, folder: Path, keys: Path) -> None:
    files = FILES | {"vocab.txt": b""}
    upload(s3, "empty", files)
    stored = obtain(quick_tier(folder), bucket(s3, "empty", keys))
    assert contents(stored) == files
    stored.close()


class Interrupted(S3Remote):
    """A store whose answers break off after a while."""

    def read(self, file: Any, start: int) -> Iterator[bytes]:
        came = 0
        for chunk in super().read(file, start):
            yield chunk
            came += len(chunk)
            if came > 700_000:
                return


def test_an_interrupted_fetch_from_a_bucket_goes_on_where_it_stopped(s3: Any, folder: Path, keys: Path) -> None:
    upload(s3, "b")
    source = S3Source(bucket="models", prefix="b/", endpoint=s3.meta.endpoint_url, credentials_file=str(keys))
    seen: list[int] = []
    client = outbound().client()
    remote = Guarded("s3:models", client, "", lambda: Interrupted(source, client, ambient=False))
    stored = obtain(quick_tier(folder), remote, lambda done, total: seen.append(done))
    assert contents(stored) == FILES
    assert seen == sorted(set(seen))
    stored.close()


def test_bytes_of_a_bucket_that_do_not_hash_as_promised_are_refused(s3: Any, folder: Path, keys: Path) -> None:
    upload(s3, "c", FILES | {"SHA256SUMS": f"{'1' * 64}  config.json\n".encode()})
    with pytest.raises(SourceError, match=r"config\.json: its sha256 is .*, the source announced 1{64}"):
        obtain(quick_tier(folder), bucket(s3, "c", keys))


def test_a_list_of_hashes_that_is_too_large_is_refused(s3: Any, folder: Path, keys: Path) -> None:
    upload(s3, "long", FILES | {"SHA256SUMS": b"#" * ((1 << 20) + 1)})
    with pytest.raises(SourceError, match=r"^s3://models/long at \S+ SHA256SUMS: has more than 1048576 bytes"):
        obtain(quick_tier(folder), bucket(s3, "long", keys))


def test_objects_missing_in_a_store_are_reported(s3: Any, folder: Path, keys: Path) -> None:
    with pytest.raises(SourceError, match="contains no model files; check bucket and prefix"):
        obtain(quick_tier(folder), bucket(s3, "nothing", keys))
    missing = bucket(s3, "x", keys, name="none")
    with pytest.raises(SourceError, match=r"NoSuchBucket.*check bucket, prefix and credentials"):
        obtain(quick_tier(folder), missing)
    away = bucket(s3, "x", keys, endpoint="http://127.0.0.1:9")
    with pytest.raises(SourceError, match="cannot be reached"):
        obtain(quick_tier(folder), away)


def test_a_source_without_credentials_gets_none_of_the_environment(s3: Any, folder: Path, keys: Path) -> None:
    upload(s3, "private")
    with pytest.raises(SourceError, match=r"403|AccessDenied"):
        obtain(quick_tier(folder), bucket(s3, "private", ""))
    obtain(quick_tier(folder), bucket(s3, "private", keys)).close()
    with pytest.raises(SourceError, match=r"403|AccessDenied"):
        obtain(quick_tier(folder), bucket(s3, "private", ""))  # what others fetched with theirs is not found, either


def test_the_owner_of_a_machine_uses_its_environment(s3: Any, folder: Path) -> None:
    upload(s3, "own")
    source = S3Source(bucket="models", prefix="own", endpoint=s3.meta.endpoint_url)
    remote = remote_of(source, outbound(ambient=True).client(), ambient=True)
    obtain(quick_tier(folder), remote).close()


def test_no_file_and_no_profile_of_the_environment_reaches_a_tenants_store(
    s3: Any, folder: Path, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload(s3, "d")
    config = folder / "config"
    config.write_text("[profile other]\nendpoint_url = http://127.0.0.1:9\n")
    for name, value in {
        "AWS_PROFILE": "missing",
        "AWS_CONFIG_FILE": str(config),
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
        "HTTP_PROXY": "http://127.0.0.1:9",
        "http_proxy": "http://127.0.0.1:9",
        "AWS_CA_BUNDLE": str(folder / "missing"),
    }.items():
        monkeypatch.setenv(name, value)
    obtain(quick_tier(folder), bucket(s3, "d", keys)).close()


def test_a_store_is_reached_through_a_proxy(s3: Any, folder: Path, keys: Path) -> None:
    upload(s3, "e")
    with real_proxy(folder) as proxy:
        place = through_proxy(s3.meta.endpoint_url)
        source = S3Source(bucket="models", prefix="e", endpoint=place, credentials_file=str(keys))
        remote = remote_of(source, outbound(egress=Egress(http_proxy=proxy.url)).client(), ambient=False)
        stored = obtain(quick_tier(folder), remote)
        assert contents(stored) == FILES
        stored.close()
        assert proxy.asked("GET", place)


def test_a_store_that_the_pool_does_not_allow_is_refused(s3: Any, folder: Path, keys: Path) -> None:
    source = S3Source(bucket="models", prefix="a", endpoint=s3.meta.endpoint_url, credentials_file=str(keys))
    remote = remote_of(source, Outbound(Policy(())).client(), ambient=False)
    with pytest.raises(SourceError, match="is at a loopback address"):
        obtain(quick_tier(folder), remote)


def test_a_file_with_half_of_the_keys_is_refused(s3: Any, keys: Path) -> None:
    keys.write_text("[default]\naws_access_key_id = half-of-it\n")
    with pytest.raises(SourceError, match="needs aws_access_key_id and aws_secret_access_key") as raised:
        bucket(s3, "a", keys)
    assert "half-of-it" not in str(raised.value)
