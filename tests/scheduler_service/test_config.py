"""The configuration file: what it may contain, and the errors for what it may not."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, get_args

import pytest

from aegaeon_operator.reconcile.processes import policy_entry
from aegaeon_operator.spec.engines import Scheduling
from aegaeon_scheduler.config import core_config, load_config
from aegaeon_scheduler.core.config import (
    LatencyConstants,
    PaperSettings,
    PolicySettings,
    PrismSettings,
    SlackSettings,
    policy_settings,
)
from aegaeon_scheduler.errors import ConfigError
from aegaeon_scheduler.removed_settings import REMOVED

MODEL = {"name": "m", "source": {"directory": "/m"}, "max_model_len": 0, "ttft_s": 1, "tbt_s": 0.1}
FULL = {
    "listen": "unix:/run/s.sock",
    "pool": "p",
    "policy": {"name": "paper", "q_max_s": 3, "max_gpsize": 4},
    "models": [MODEL, MODEL | {"name": "h", "source": {"hub": {"repository": "org/h", "revision": ""}}}],
    "constants": None,
    "record": None,
    "heartbeat_timeout_s": 2,
    "hold_s": 20,
    "metrics_listen": "127.0.0.1:9000",
}


def written(folder: Path, content: Any, name: str = "config.json") -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_a_full_file_is_read_and_reaches_the_core(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, FULL))
    assert [m.name for m in config.models] == ["m", "h"]
    core = core_config(config)
    assert isinstance(core.policy, PaperSettings)
    assert (core.policy.q_max_s, core.policy.max_gpsize, core.hold_s) == (3, 4, 20)
    assert core.policy.alpha_floor == 0.5


def test_a_policy_has_its_own_settings_and_is_slack_where_none_is_named(tmp_path: Path) -> None:
    def policy(given: Any) -> Any:
        return core_config(load_config(written(tmp_path, FULL | {"policy": given}))).policy

    assert policy({"min_stay_s": 2}) == SlackSettings(min_stay_s=2)
    assert policy({"name": "slack"}) == policy({}) == SlackSettings()
    assert policy({"name": "paper"}) == PaperSettings()
    assert policy({"name": "prism", "threshold": 1}) == PrismSettings(threshold=1)


@pytest.mark.parametrize("name", get_args(Scheduling.model_fields["policy"].annotation))
def test_every_policy_of_a_gpupool_is_one_of_the_scheduler(tmp_path: Path, name: str) -> None:
    given = policy_entry(Scheduling.model_validate({"policy": name}))
    core = core_config(load_config(written(tmp_path, FULL | {"policy": given})))
    assert core.policy == policy_settings(name)


@pytest.mark.parametrize("settings", [PaperSettings(), SlackSettings(), PrismSettings()])
def test_a_file_may_give_every_setting_of_a_policy(tmp_path: Path, settings: PolicySettings) -> None:
    core = core_config(load_config(written(tmp_path, FULL | {"policy": asdict(settings)})))
    assert core.policy == settings


def test_every_setting_of_slack_is_reached_by_a_gpupool(tmp_path: Path) -> None:
    durations = {"minStay": "1s", "promptPart": "50ms", "lateSlack": "9s"}
    scheduling = Scheduling.model_validate(durations | {"quantumSteps": 4, "headroomPercent": 5, "warm": True})
    entry = policy_entry(scheduling)
    assert entry.keys() == {field.name for field in fields(SlackSettings)}
    core = core_config(load_config(written(tmp_path, FULL | {"policy": entry})))
    assert core.policy == SlackSettings("slack", 4, 0.05, 9.0, 1.0, 0.05, True)


def test_settings_that_slack_had_before_are_accepted_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path, FULL | {"policy": {"lone_share": 0.2, "min_stay_s": 2, "first_weight": 3.0}})
    assert core_config(load_config(path)).policy == SlackSettings(min_stay_s=2)
    warnings = [record.getMessage() for record in caplog.records]
    assert warnings == [
        f"{path}: policy.{name}: the setting was removed and has no effect; delete it"
        for name in ("first_weight", "lone_share")
    ]


def test_no_setting_of_a_policy_counts_as_removed() -> None:
    for name, names in REMOVED.items():
        assert not names & {field.name for field in fields(policy_settings(name))}


def without(key: str) -> Any:
    return {k: v for k, v in FULL.items() if k != key}


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (FULL | {"listne": "x"}, "listne: unknown key"),
        (FULL | {"policy": {"name": "paper", "qmax": 3}}, "policy.qmax: unknown key"),
        (FULL | {"policy": {"name": "slack", "q_max_s": 3}}, "policy.q_max_s: unknown key"),
        (FULL | {"policy": {"name": "paper", "min_stay_s": 3}}, "policy.min_stay_s: unknown key"),
        (FULL | {"policy": {"name": "paper", "lone_share": 0.3}}, "policy.lone_share: unknown key"),
        (FULL | {"policy": {"name": "paper", "alpha_floor": 1.5}}, "policy.alpha_floor: Input should be less than"),
        (FULL | {"policy": {"name": "prism", "min_stay_s": 3}}, "policy.min_stay_s: unknown key"),
        (FULL | {"policy": {"name": "slcak"}}, "policy.name: Input should be"),
        (FULL | {"models": [MODEL, MODEL]}, "models: m listed more than once"),
        (FULL | {"models": [MODEL | {"source": {}}]}, 'models.0.source: exactly one of "directory", "hub", "s3"'),
        (FULL | {"models": [MODEL | {"ttft_s": 0}]}, "models.0.ttft_s: Input should be greater than 0"),
        (FULL | {"heartbeat_timeout_s": "soon"}, "heartbeat_timeout_s: Input should be a valid number"),
        (FULL | {"metrics_listen": "9000"}, "metrics_listen: String should match pattern"),
        (without("listen"), "listen: Field required"),
        ("{", "Invalid JSON"),
    ],
)
def test_an_invalid_file_is_named_with_key_and_reason(tmp_path: Path, content: Any, complaint: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(ConfigError) as error:
        load_config(path)
    assert str(error.value).startswith(f"{path}: ")
    assert complaint in str(error.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.json: cannot be read: No such file"):
        load_config(tmp_path / "nowhere.json")


def test_measured_constants_reach_the_core(tmp_path: Path) -> None:
    constants = {name: float(n + 1) for n, name in enumerate(LatencyConstants.__slots__)}
    measured = {"constants": [{"model": "m", "device": "cpu"} | constants], "fits": [{"r2": 0.9}]}
    path = written(tmp_path, measured, "constants.json")
    core = core_config(load_config(written(tmp_path, FULL | {"constants": str(path)})))
    assert [(c.model, c.device, c.constants) for c in core.constants] == [("m", "cpu", LatencyConstants(**constants))]


def test_a_constants_file_with_a_typing_error_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, {"constants": [{"model": "m", "alpha": 1}]}, "constants.json")
    config = load_config(written(tmp_path, FULL | {"constants": str(path)}))
    with pytest.raises(ConfigError, match=r"constants\.json: constants\.0\.device: Field required"):
        core_config(config)
