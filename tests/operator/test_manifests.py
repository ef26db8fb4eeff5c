"""Manifests: good ones become objects, bad ones become sentences with file, document, field and what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from aegaeon_operator.errors import ManifestError
from aegaeon_operator.spec import Manifests, load_manifests

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart"
GPU = (QUICKSTART / "gpupool.yaml").read_text("utf-8")
MODELS = (QUICKSTART / "modelpool.yaml").read_text("utf-8")
ONE_MODEL = MODELS.split("    - name: mistral")[0]


def load(folder: Path, *documents: str) -> Manifests:
    (folder / "pool.yaml").write_text("\n---\n".join(documents), "utf-8")
    return load_manifests(folder, folder / "models")


def problems(folder: Path, *documents: str) -> list[str]:
    with pytest.raises(ManifestError) as raised:
        load(folder, *documents)
    return list(raised.value.problems)


def test_the_quickstart_is_one_pool_of_four_models_with_two_engines() -> None:
    (pool,) = load_manifests(QUICKSTART, Path("/models")).pools
    spec = pool.gpu_pool.spec
    assert [model.name for model in pool.models] == ["llama", "mistral", "qwen2", "qwen3"]
    assert spec.engines is not None
    assert (spec.prefill, spec.decode, spec.engines.replicas) == (None, None, 2)
    assert spec.scheduling.policy == "slack"
    assert spec.memory.slab_size == 256 << 10


def test_a_plain_host_path_is_in_the_models_folder_and_a_dotted_one_beside_the_manifest(tmp_path: Path) -> None:
    def path_of(given: str) -> str | None:
        (pool,) = load(tmp_path, GPU, ONE_MODEL.replace("{hostPath: llama}", f"{{hostPath: {given}}}")).pools
        return pool.models[0].source.host_path

    assert path_of("llama") == str(tmp_path / "models" / "llama")
    assert path_of("./llama") == str(tmp_path / "llama")
    assert path_of("../llama") == str(tmp_path.parent / "llama")
    assert path_of("/srv/llama") == "/srv/llama"
    assert path_of("~/llama") == str(Path.home() / "llama")


@pytest.mark.parametrize("given", ["./loop", "~no-such-user/llama"])
def test_a_host_path_that_does_not_exist_fails_that_model_alone(tmp_path: Path, given: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (pool,) = load(tmp_path, GPU, ONE_MODEL.replace("{hostPath: llama}", f"{{hostPath: {given}}}")).pools
    assert pool.models[0].source.host_path is not None


def test_several_model_pools_of_one_gpu_pool_are_served_together(tmp_path: Path) -> None:
    other = ONE_MODEL.replace("name: llama", "name: other").replace("name: quickstart", "name: second", 1)
    (pool,) = load(tmp_path, GPU, ONE_MODEL, other).pools
    assert [model.name for model in pool.models] == ["llama", "other"]


def test_a_model_may_come_from_the_hub(tmp_path: Path) -> None:
    hub = "{huggingFace: {repository: Qwen/Qwen3-0.6B, revision: main}}"
    (pool,) = load(tmp_path, GPU, ONE_MODEL.replace("{hostPath: llama}", hub)).pools
    source = pool.models[0].source.hugging_face
    assert source is not None
    assert (source.repository, source.revision) == ("Qwen/Qwen3-0.6B", "main")


BAD_GPU = [
    ("    deviceBytes: 13Mi\n", "", "spec: memory.deviceBytes is required with accelerator.device cpu"),
    ("slabSize: 256Ki", "slabSize: 256KB", "spec.memory.slabSize: '256KB' is not a quantity of bytes"),
    ("slabSize: 256Ki", "slabSize: 1000", "spec.memory: slabSize 1000 is not a multiple of 4Ki"),
    ("slabSize: 256Ki", "slabSize: 64Mi", "spec.memory: deviceBytes 13Mi is less than one slab of 64Mi"),
    ("hold: 30s", "hold: 30", "spec.scheduling.hold: 30 is not a duration; write a number with a unit"),
    ("hold: 30s", "hold: 0s", "spec.scheduling.hold: '0s' is out of range; allowed: more than 0"),
    ("policy: slack", "policy: fifo", "spec.scheduling.policy: 'fifo' is not known; allowed: 'slack'"),
    (
        "maxBatch: 16",
        "thread: 1",
        "spec.tuning.thread: unknown field; allowed here: threads, maxBatch, maxGraphs, prefillChunkTokens",
    ),
    ("maxBatch: 16", "threads: '1'", "spec.tuning.threads: '1' is not allowed; expected a whole number"),
    ("maxBatch: 16", "threads: 0", "spec.tuning.threads: 0 is out of range; allowed: at least 1"),
    ("device: cpu", "device: gpu", "spec.accelerator.device: 'gpu' is not allowed; allowed: cpu or cuda:N"),
    ("device: cpu", "count: 9", "spec.accelerator.count: 9 is out of range; allowed: at most 8"),
    (
        "    dtype: float32\n  engines:\n    replicas: 2\n  memory:\n    deviceBytes: 13Mi\n    slabSize: 256Ki\n",
        "    count: 8\n  engines:\n    replicas: 2\n  memory:\n    deviceBytes: 13Mi\n    slabSize: 2Mi\n",
        "spec: memory.hostKv 12Mi is less than one slab of 2Mi for each of 8 accelerators; raise hostKv",
    ),
    (
        "backend: torch\n  accelerator:\n",
        "backend: vllm\n  accelerator:\n    count: 2\n",
        "spec: accelerator.count must be 1 with backend vllm; use backend torch to split models among accelerators",
    ),
    (
        "backend: torch\n  accelerator:\n    device: cpu\n",
        "backend: vllm\n  accelerator:\n    device: cuda:0\n",
        "spec: accelerator.device must be cpu with backend vllm; use backend torch for GPUs",
    ),
    ("  engines:\n", "  decode:\n", "spec: decode needs prefill as well; or use engines"),
    (
        "name: quickstart",
        "name: Quick_Start",
        "metadata.name: 'Quick_Start' is not allowed; allowed: lower-case letters",
    ),
    ("kind: GpuPool", "kind: GpuPol", "kind: 'GpuPol' is not known here; allowed: GpuPool, ModelPool"),
    ("v1alpha1", "v1", "apiVersion: 'serving.aegaeon.io/v1' is not known; allowed: 'serving.aegaeon.io/v1alpha1'"),
    ("spec:\n", "spec: 3\nnothing:\n", "spec: 3 is not allowed; expected a mapping"),
    ("backend: torch", "backend: torch\n  backend: torch", "duplicate key 'backend'"),
    ("backend: torch", "backend: [", "line"),
]
BAD_MODELS = [
    ("{hostPath: llama}", "{}", "spec.models[0].source: set exactly one of hostPath, huggingFace, s3, http"),
    (
        "{hostPath: llama}",
        "{hostPath: a, huggingFace: {repository: b}}",
        "spec.models[0].source: set exactly one of hostPath, huggingFace, s3, http",
    ),
    ("{hostPath: llama}", "{s3: a}", "spec.models[0].source.s3: 'a' is not allowed; expected a mapping"),
    ("{hostPath: llama}", "{pvc: a}", "source.pvc: unknown field; allowed here: hostPath, huggingFace, s3, http"),
    (
        "{hostPath: llama}",
        "{http: {url: ftp://a}}",
        "http.url: 'ftp://a' is not allowed; allowed: an http:// or https://",
    ),
    ("{hostPath: llama}", "{http: {url: 'http://[bad/m1'}}", "http.url: 'http://[bad/m1' is not allowed; allowed: an"),
    ("{hostPath: llama}", "{http: {url: 'http://[::g]/m1'}}", "source.http.url: 'http://[::g]/m1' is not allowed"),
    ("{hostPath: llama}", "{http: {url: 'http://[1::2::3]/m'}}", "http.url: is not an address: the text in brackets"),
    ("{hostPath: llama}", "{http: {url: 'http://h:99999/m'}}", "http.url: is not a URL: 99999 is not a port"),
    ("{hostPath: llama}", "{http: {url: 'http://a/ü'}}", "http.url: 'http://a/ü' is not allowed; allowed: an http://"),
    ("{hostPath: llama}", "{http: {url: 'http://u:pw@h/m'}}", "http.url: 'http://h/m' is not allowed; allowed: an"),
    ("{hostPath: llama}", "{s3: {bucket: a, endpoint: 'http://b:0'}}", "s3.endpoint: is not a URL: 0 is not a port"),
    ("{hostPath: llama}", "{huggingFace: {repository: 'a b'}}", "repository: 'a b' is not allowed"),
    ("{hostPath: llama}", "{s3: {bucket: a}}", "source: needs a disk tier, but"),
    ("tbt: 100ms", "tbt: soon", "spec.models[0].slo.tbt: 'soon' is not a duration"),
    ("name: llama", "name: 'a b'", "spec.models[0].name: 'a b' is not allowed; allowed: letters, digits"),
    ("name: llama", "name: 2024-01-01\n      maxModelLen: 1.5", "spec.models[0].maxModelLen: 1.5 is not allowed"),
    ("port: 8000", "port: 80000", "spec.gateway.port: 80000 is out of range; allowed: at most 65535"),
    (
        "gpuPoolRef:\n    name: quickstart",
        "gpuPoolRef:\n    name: other",
        "spec.gpuPoolRef.name: there is no GpuPool 'other' in namespace 'default'; known: default/quickstart",
    ),
]


@pytest.mark.parametrize(("good", "bad", "sentence"), BAD_GPU)
def test_a_wrong_gpu_pool_is_named_with_file_document_and_field(
    tmp_path: Path, good: str, bad: str, sentence: str
) -> None:
    assert good in GPU
    found = problems(tmp_path, ONE_MODEL, GPU.replace(good, bad, 1))
    assert any(f"{tmp_path}/pool.yaml: document 2" in line and sentence in line for line in found), found


@pytest.mark.parametrize(("good", "bad", "sentence"), BAD_MODELS)
def test_a_wrong_model_pool_is_named_with_file_document_and_field(
    tmp_path: Path, good: str, bad: str, sentence: str
) -> None:
    assert good in ONE_MODEL
    found = problems(tmp_path, GPU, ONE_MODEL.replace(good, bad, 1))
    assert any(f"{tmp_path}/pool.yaml: document 2" in line and sentence in line for line in found), found


def test_all_problems_of_all_documents_are_reported_at_once(tmp_path: Path) -> None:
    found = problems(
        tmp_path, GPU.replace("hold: 30s", "hold: 30").replace("maxBatch: 16", "threads: 0"), "- 1", "kind: Pod"
    )
    assert len(found) == 4
    assert found[2].endswith("document 2: is not a mapping; a manifest begins with apiVersion and kind")


def test_a_model_may_have_its_name_on_other_servers(tmp_path: Path) -> None:
    (pool,) = load(tmp_path, GPU, ONE_MODEL.replace("name: llama", "name: 'org/Llama@v2:8b'")).pools
    assert [model.name for model in pool.models] == ["org/Llama@v2:8b"]


def test_a_duplicate_served_name_reports_both_places(tmp_path: Path) -> None:
    other = ONE_MODEL.replace("name: quickstart", "name: second", 1)
    (sentence,) = problems(tmp_path, GPU, ONE_MODEL, other)
    assert "document 3 (ModelPool second): spec.models[0].name: 'llama' is already served by" in sentence
    assert "document 2 (ModelPool quickstart): spec.models[0].name" in sentence


def test_objects_given_twice_and_ports_that_differ_are_refused(tmp_path: Path) -> None:
    again = ONE_MODEL.replace("name: llama", "name: b").replace("8000", "9000")
    found = problems(tmp_path, GPU, GPU, ONE_MODEL, again)
    assert any("document 2 (GpuPool quickstart): metadata.name: is a duplicate of" in line for line in found)
    assert any("document 4 (ModelPool quickstart): spec.gateway.port: 9000 differs from 8000" in line for line in found)


def test_a_gpu_pool_without_models_is_refused(tmp_path: Path) -> None:
    (sentence,) = problems(tmp_path, GPU)
    assert sentence.endswith("no ModelPool refers to it; add one with gpuPoolRef.name: quickstart")


@pytest.mark.parametrize(("documents", "sentence"), [((), "has no GpuPool"), ((MODELS,), "has no GpuPool")])
def test_a_folder_without_a_gpu_pool_is_refused(tmp_path: Path, documents: tuple[str, ...], sentence: str) -> None:
    assert sentence in problems(tmp_path, *documents)[0]


def test_a_missing_or_empty_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"has no \*.yaml file"):
        load_manifests(tmp_path, tmp_path)
    with pytest.raises(ManifestError, match="gone: no such file or folder"):
        load_manifests(tmp_path / "gone", tmp_path)


def test_a_file_that_is_not_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "pool.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ManifestError, match=r"pool.yaml: cannot be read"):
        load_manifests(tmp_path, tmp_path)


# ---- what belongs to Kubernetes ------------------------------------------------------------------------------------


def in_namespace(namespace: str, ref: str = "") -> str:
    return ONE_MODEL.replace(
        "  name: quickstart\nspec:", f"  name: quickstart\n  namespace: {namespace}\nspec:"
    ).replace("    name: quickstart\n", f"    name: quickstart\n{ref}", 1)


def test_a_model_pool_of_another_namespace_must_be_allowed(tmp_path: Path) -> None:
    allowed = GPU.replace("spec:\n", "spec:\n  allowedNamespaces: [team-a]\n", 1)
    ref = "    namespace: default\n"
    assert len(load(tmp_path, allowed, in_namespace("team-a", ref)).pools[0].models) == 1
    (problem,) = problems(tmp_path, allowed, in_namespace("team-b", ref), ONE_MODEL.replace("llama", "other"))
    assert problem.endswith(
        "spec.gpuPoolRef: GpuPool 'quickstart' does not allow namespace 'team-b'; add it to its allowedNamespaces"
    )


@pytest.mark.parametrize(
    ("gpu", "models", "sentence"),
    [
        (
            ("replicas: 2", "replicas: 0"),
            ("", ""),
            "spec.engines.replicas: must be at least 1 with `aegaeon up`, which does not scale from 0",
        ),
        (
            ("replicas: 2", "replicas: 2\n    min: 3\n    max: 2"),
            ("", ""),
            "spec.engines: min 3 is more than max 2",
        ),
        (
            ("", ""),
            ("  models:", "  tenants: [{name: red, keySecretRef: {name: red, key: keys}}]\n  models:"),
            "spec.tenants[0].keySecretRef: needs Kubernetes; with `aegaeon up` set keyFile",
        ),
        (
            ("", ""),
            ("  models:", "  tenants: [{name: red}]\n  models:"),
            "spec.tenants[0]: set exactly one of keyFile, keySecretRef",
        ),
    ],
)
def test_features_that_need_a_cluster_are_named(
    tmp_path: Path, gpu: tuple[str, str], models: tuple[str, str], sentence: str
) -> None:
    (problem,) = problems(tmp_path, GPU.replace(*gpu, 1), ONE_MODEL.replace(*models, 1))
    assert problem.endswith(sentence)


def billions() -> str:
    """Ten lines whose anchors stand for billions of values."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 10)]
    return "\n".join(["kind: GpuPool", *lines])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[" * 5000, "is nested too deeply"),
        ("kind: ModelPool\nspec: &a {b: *a}", "an anchor that contains itself"),
        (billions(), "has more than 200000 values"),
        ("kind: ModelPool\nspec: " + "9" * 5000, "a value that cannot be read"),
    ],
)
def test_a_document_that_expands_beyond_its_size_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "pool.yaml").write_text(text)
    with pytest.raises(ManifestError) as caught:
        load_manifests(tmp_path, tmp_path)
    assert reason in caught.value.problems[0]


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("a b", "spec.allowedSources[0]: 'a b' is not allowed; allowed: a host such as"),
        ("10.0.0.1/8", "spec.allowedSources[0]: '10.0.0.1/8' is neither a host"),
        ("a:99999", "spec.allowedSources[0]: 'a:99999' is neither a host"),
    ],
)
def test_an_invalid_allowed_source_is_named(tmp_path: Path, entry: str, words: str) -> None:
    found = problems(tmp_path, GPU.replace("spec:\n", f"spec:\n  allowedSources: ['{entry}']\n", 1), ONE_MODEL)
    assert any(words in line for line in found), found
