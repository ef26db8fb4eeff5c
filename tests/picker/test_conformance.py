"""How a run of GIE's suite is prepared and judged; the run itself is `make conformance`."""

import pytest
import yaml
from e2e.conformance.entry import ours
from e2e.conformance.manifests import named
from e2e.conformance.results import NOT_OURS, problems, read, summary

(ISTIOS,) = NOT_OURS
SAID = f"""
=== RUN   TestConformance
=== RUN   TestConformance/InferencePoolAccepted
    conformance.go:51: --- PASS: TestConformance/Quoted (0.00s)
--- FAIL: TestConformance (361.19s)
    --- PASS: TestConformance/InferencePoolAccepted (1.02s)
        --- PASS: TestConformance/InferencePoolAccepted/a_step (1.00s)
    --- FAIL: TestConformance/{ISTIOS} (300.10s)
        --- FAIL: TestConformance/{ISTIOS}/a_step (300.00s)
    --- SKIP: TestConformance/EppUnAvailableFailOpen (0.00s)
FAIL
"""
MANIFEST = """
kind: Namespace
metadata: {name: infra}
---
kind: Namespace
metadata: {name: servers}
---
kind: Deployment
spec:
  template: {spec: {containers: [{name: echoserver-3000, image: "echo:1"}, {name: echoserver-3002, image: "echo:1"}]}}
---
kind: Deployment
spec: {template: {spec: {containers: [{name: epp, image: "picker:1"}]}}}
---
kind: InferencePool
metadata: {name: one, namespace: servers}
spec: {endpointPickerRef: {name: picks}}
---
kind: InferencePool
metadata: {name: two, namespace: servers}
spec: {endpointPickerRef: {name: picks}}
"""


def test_tests_are_counted_and_their_subtests_are_not() -> None:
    assert [(one.test, one.verdict, one.seconds) for one in read(SAID)] == [
        ("InferencePoolAccepted", "PASS", 1.02),
        (ISTIOS, "FAIL", 300.1),
        ("EppUnAvailableFailOpen", "SKIP", 0.0),
    ]
    assert summary(read(SAID))[-1] == "1 passed, 1 failed, 1 skipped"


def test_a_known_failure_is_reported_with_its_reason_and_passes() -> None:
    (line,) = [line for line in summary(read(SAID)) if line.startswith("FAIL")]
    assert NOT_OURS[ISTIOS] in line
    assert problems(read(SAID)) == []


def test_any_other_failure_is_one() -> None:
    assert problems(read(SAID.replace("--- PASS: TestConformance/Inf", "--- FAIL: TestConformance/Inf"))) == [
        "InferencePoolAccepted failed"
    ]


def test_a_suite_that_stopped_before_its_first_test_fails() -> None:
    (why,) = problems(read("--- FAIL: TestConformance (60.01s)\nFAIL\n"))
    assert "no test ran" in why


def test_a_known_failure_that_passes_asks_to_be_removed() -> None:
    (why,) = problems(read(f"    --- PASS: TestConformance/{ISTIOS} (4.00s)\n"))
    assert "take it out of NOT_OURS" in why


def test_images_and_services_are_those_that_the_manifests_name() -> None:
    found = named(list(yaml.safe_load_all(MANIFEST)))
    assert (found.picker_image, found.echo_image, found.namespaces) == ("picker:1", "echo:1", ("infra", "servers"))
    assert found.pickers == ("picks.servers.svc.cluster.local",)


def test_the_suites_options_become_those_of_the_picker() -> None:
    arguments = ["--pool-name", "p", "--pool-namespace", "n", "--zap-encoder", "json"]
    arguments += ["--grpc-port", "9002", "--grpc-health-port", "9003"]
    pool, ports = ["--pool", "p", "--namespace", "n"], ["--listen", "0.0.0.0:9002", "--health-listen", "0.0.0.0:9003"]
    assert ours(arguments) == [*pool, *ports, "--conformance"]
    with pytest.raises(SystemExit):
        ours([*arguments, "--unheard-of"])
