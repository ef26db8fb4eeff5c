"""The table of backends is what manifests, engines and the operator go by."""

from __future__ import annotations

from dataclasses import fields
from importlib import import_module
from inspect import signature
from typing import get_args

from aegaeon_operator.reconcile.cluster.platform import Platform
from aegaeon_operator.spec.resources import GpuPoolSpec
from aegaeon_proto.backends import BACKENDS, DEFAULT, BackendKind, BackendName
from aegaeon_sidecar.config import SidecarConfig

KINDS = list(BACKENDS.values())


def test_manifests_and_engines_take_exactly_the_names_of_the_table() -> None:
    for form in (GpuPoolSpec, SidecarConfig):
        field = form.model_fields["backend"]
        assert get_args(field.annotation) == get_args(BackendName) == tuple(BACKENDS)
        assert field.default == DEFAULT
    for kind in KINDS:
        assert f"`{kind.name}`: {kind.models}." in str(GpuPoolSpec.model_fields["backend"].description)


def test_every_backend_is_opened_with_the_same_arguments() -> None:
    opened = [signature(import_module(kind.factory).open_backend).parameters for kind in KINDS]
    assert [set(parameters) for parameters in opened] == [
        {"device", "ranks", "dtype", "adapters", "max_graphs"} for _ in KINDS
    ]


def test_the_image_of_every_backend_is_a_setting_of_the_operator() -> None:
    assert {kind.image for kind in KINDS} <= {field.name for field in fields(Platform)}


def test_a_row_says_everything_that_pages_show() -> None:
    texts = [field.name for field in fields(BackendKind) if field.name != "starting"]
    assert all(getattr(kind, name) not in ("", None) for kind in KINDS for name in texts)
