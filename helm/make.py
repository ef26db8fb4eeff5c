"""Generates files of the chart: values, their schema and README, the dashboard, copies of CRDs and RBAC.

Run by `make generate`; `make check` fails when a file is not what helm/*.py and crds/ say.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from textwrap import wrap

import yaml
from dashboard import dashboard
from pydantic import BaseModel
from values import Chart

HERE = Path(__file__).parent
CHART = HERE / "aegaeon"
NOTICE = "made by `make generate` from helm/values.py; do not edit"


def main() -> None:
    """Write all files."""
    (CHART / "values.yaml").write_text("\n".join(values()) + "\n", "utf-8")
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema"} | Chart.model_json_schema(by_alias=True)
    # Helm hands the values of a parent chart to each chart under this name.
    schema["properties"]["global"] = {"type": "object"}
    (CHART / "values.schema.json").write_text(json.dumps(schema, indent=1) + "\n", "utf-8")
    (CHART / "README.md").write_text("\n".join(readme()) + "\n", "utf-8")
    (CHART / "files" / "dashboard.json").write_text(json.dumps(dashboard(), indent=1) + "\n", "utf-8")
    shutil.copyfile(HERE.parent / "operator/aegaeon_operator/kube/rbac.yaml", CHART / "files" / "rbac.yaml")
    for file in sorted((HERE.parent / "crds").glob("*.yaml")):
        shutil.copyfile(file, CHART / "files" / "crds" / file.name)


def values() -> Iterator[str]:
    """Yield the default values, each below its description."""
    yield f"# Values of the chart; {NOTICE}."
    for name, field in Chart.model_fields.items():
        yield ""
        default = field.default
        if isinstance(default, BaseModel):
            yield from comment(field.description, "")
            yield f"{alias(Chart, name)}:"
            for inner, about in type(default).model_fields.items():
                yield from comment(about.description, "  ")
                yield f"  {alias(type(default), inner)}: {scalar(getattr(default, inner))}"
        else:
            yield from comment(field.description, "")
            yield f"{alias(Chart, name)}: {scalar(default)}"


def readme() -> Iterator[str]:
    """Yield the installation instructions and a table of the values."""
    yield f"<!-- {NOTICE} -->\n"
    yield (HERE / "README.head.md").read_text("utf-8")
    yield "| value | default | meaning |\n|---|---|---|"
    for name, field in Chart.model_fields.items():
        default = field.default
        if not isinstance(default, BaseModel):
            yield row(alias(Chart, name), default, field.description)
            continue
        yield f"| **`{alias(Chart, name)}`** | | {' '.join(str(field.description).split())} |"
        for inner, about in type(default).model_fields.items():
            path = f"{alias(Chart, name)}.{alias(type(default), inner)}"
            yield row(path, getattr(default, inner), about.description)


def row(path: str, default: object, description: str | None) -> str:
    """One value."""
    return f"| `{path}` | `{scalar(default)}` | {' '.join(str(description).split())} |"


def comment(text: str | None, indent: str) -> Iterator[str]:
    """Yield a text as wrapped comment lines."""
    for line in wrap(" ".join(str(text).split()), 110):
        yield f"{indent}# {line}"


def alias(model: type[BaseModel], name: str) -> str:
    """As people write it."""
    return model.model_fields[name].alias or name


def scalar(value: object) -> str:
    """On one line of YAML."""
    return yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("...\n").strip()


if __name__ == "__main__":
    main()
