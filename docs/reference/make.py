"""Writes the reference pages beside this file from the code: manifests from the pydantic types, commands from click,
the API from the types of its requests.

Run by `make generate`; `make check` fails when a page is not what the code says.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import api
import click

from aegaeon_cli.kubectl.main import main as plugin
from aegaeon_cli.main import main as aegaeon
from aegaeon_operator.spec.quantity import format_duration, format_quantity
from aegaeon_operator.spec.resources import GpuPool, ModelPool
from aegaeon_proto.backends import BACKENDS, DEFAULT

HERE = Path(__file__).parent
COLUMNS = 100
LONG = 4
"""rows of a type that are listed once for each kind, where it is used first"""
SAID = "<!-- made by `make generate`; do not edit -->\n"
Schema = dict[str, Any]


def main() -> None:
    """All pages."""
    (HERE / "manifests.md").write_text("\n".join(manifests()) + "\n", "utf-8")
    (HERE / "commands.md").write_text("\n".join(commands()) + "\n", "utf-8")
    (HERE / "backends.md").write_text("\n".join(backends()) + "\n", "utf-8")
    api.main()


# ---- backends ------------------------------------------------------------------------------------------------------


def backends() -> Iterator[str]:
    """A column for each backend."""
    yield f"{SAID}\n# Backends\n"
    yield (
        "What executes models: `spec.backend` of a GpuPool. This is the table `BACKENDS`\n"
        "([`backends.py`](../../proto/aegaeon_proto/backends.py)), from which the CRD, engines, `aegaeon up` and\n"
        "`aegaeon doctor` take the same: [vLLM as the backend](../guides/vllm.md),\n"
        "[adding a backend](../adding-a-backend.md).\n"
    )
    kinds = list(BACKENDS.values())
    lines = {
        "": [f"`{kind.name}`{' (default)' * (kind.name == DEFAULT)}" for kind in kinds],
        "models": [kind.models for kind in kinds],
        "GPUs": [_yes(kind.gpus) for kind in kinds],
        "a model on several GPUs": [_yes(kind.several_devices) for kind in kinds],
        "adapters (LoRA)": [_yes(kind.adapters) for kind in kinds],
        "memory of an engine on a CPU outside its slabs, without activations": [
            format_quantity(kind.process_bytes) for kind in kinds
        ],
        "installed by": [kind.install for kind in kinds],
        "module of the sidecar": [f"`{kind.factory}`" for kind in kinds],
    }
    for number, (name, cells) in enumerate(lines.items()):
        yield f"| {name} | {' | '.join(cells)} |"
        if not number:
            yield "|" + "---|" * (len(kinds) + 1)


def _yes(value: bool) -> str:
    return "yes" if value else "no"


# ---- manifests -----------------------------------------------------------------------------------------------------


def manifests() -> Iterator[str]:
    """A section for each kind."""
    yield f"{SAID}\n# Manifests\n"
    yield (
        "The kinds of `serving.aegaeon.io/v1alpha1` that `aegaeon up -f DIR` reads: all `*.yaml` of a folder, several\n"
        "documents a file if you like. An unknown field is an error. A quantity is bytes with an optional unit\n"
        "(`4096`, `512Mi`, `2G`), a duration a number with a unit (`100ms`, `10s`, `1m30s`). A complete example is\n"
        "[examples/quickstart](../../examples/quickstart)."
    )
    for kind in (GpuPool, ModelPool):
        schema = kind.model_json_schema(by_alias=True)
        yield f"\n## {kind.__name__}\n\n{schema['description']}\n"
        yield "| field | type | default | meaning |\n|---|---|---|---|"
        yield from rows(schema, schema["$defs"], "")


def rows(schema: Schema, defs: Schema, path: str, listed: dict[str, str] | None = None) -> Iterator[str]:
    """A row for every field, those of objects inside after their own. `listed`: where long types were listed before."""
    listed = {} if listed is None else listed
    for name, field in schema["properties"].items():
        inner = resolve(field, defs)
        here = f"{path}{name}"
        meaning = max(field.get("description", ""), inner.get("description", ""), key=len).replace("|", "\\|")
        default = "required" if name in schema.get("required", ()) else default_of(field, type_of(inner))
        items = resolve(inner.get("items", {}), defs)
        whole, there = (inner, f"{here}.") if "properties" in inner else (items, f"{here}[].")
        before = listed.get(whole.get("title", ""))
        below = [] if before or "properties" not in whole else list(rows(whole, defs, there, listed))
        if len(below) > LONG:
            listed[whole["title"]] = there.rstrip(".")
        said = f"{meaning} Fields as those of `{before}`." if before else meaning
        yield f"| `{here}` | {type_of(inner)} | {default} | {' '.join(said.split())} |"
        yield from below


def resolve(field: Schema, defs: Schema) -> Schema:
    """The schema that a field refers to; that of T for T | None."""
    if "$ref" in field:
        return dict(defs[field["$ref"].rpartition("/")[2]])
    if "anyOf" in field and not is_quantity(field):
        return resolve(next(one for one in field["anyOf"] if one.get("type") != "null"), defs)
    return field


def is_quantity(field: Schema) -> bool:
    return bool(field.get("x-kubernetes-int-or-string"))


def type_of(field: Schema) -> str:
    """For people."""
    if is_quantity(field):
        return "quantity"
    if allowed := field.get("enum") or ([field["const"]] if "const" in field else None):
        return ", ".join(f"`{value}`" for value in allowed)
    if "(ns|us|" in field.get("pattern", ""):
        return "duration"
    if field["type"] == "integer":
        return f"integer {field.get('minimum', '')} to {field.get('maximum', '')}".rstrip()
    return {"object": "object", "array": "list"}.get(field["type"], "text")


def default_of(field: Schema, kind: str) -> str:
    """What a field is when it is left out, as it would be written."""
    default = field.get("default")
    if default is None or isinstance(default, dict):
        return ""
    written = {"quantity": format_quantity, "duration": format_duration}.get(kind, str)(default)
    return f"`{written}`" if written else '`""`'


# ---- commands ------------------------------------------------------------------------------------------------------


def commands() -> Iterator[str]:
    """The help of every command, as it prints it."""
    yield f"{SAID}\n# Commands"
    yield from helps(aegaeon, "aegaeon")
    yield from helps(plugin, "kubectl aegaeon")


def helps(command: click.Command, name: str, parent: click.Context | None = None) -> Iterator[str]:
    """This command's help, then those below it."""
    context = click.Context(
        command, parent, info_name=name, terminal_width=COLUMNS, max_content_width=COLUMNS, **command.context_settings
    )
    title = context.command_path
    yield f"\n## {title}\n\n```\n{command.get_help(context)}\n```"
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            found = command.get_command(context, below)
            assert found is not None
            yield from helps(found, below, context)


if __name__ == "__main__":
    main()
