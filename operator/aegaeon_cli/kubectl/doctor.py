"""`kubectl aegaeon doctor`: what is wrong with an installation and its pools, and what to do about it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import click

from aegaeon_cli.doctor import Finding, Verdict
from aegaeon_cli.errors import CliError
from aegaeon_cli.kubectl.access import Where, cluster_options, output_option
from aegaeon_cli.kubectl.checks import api_server, objects, operator, pods_of, schedulers

_WORDS = {"missing": "wrong"}  # what `aegaeon doctor` says of a machine is another thing of a cluster


@click.command()
@cluster_options
@output_option
@click.option(
    "--system", default="aegaeon-system", show_default=True, metavar="NAME", help="Namespace of the operator."
)
def doctor(*, where: Where, output: str, system: str) -> None:
    """Say what is wrong; exit status 1 when something is.

    What the user of the kubeconfig may not see is a note, and not looked at.

    \b
    Example:
      kubectl aegaeon doctor --all-namespaces
      kubectl aegaeon doctor -n default -o json
    """
    findings = list(examine(where, system))
    if output == "json":
        click.echo(json.dumps([_as_json(one) for one in findings], indent=1))
    else:
        for line in _lines(findings):
            click.echo(line)
    raise SystemExit(int(any(one.verdict is Verdict.MISSING for one in findings)))


def examine(where: Where, system: str) -> Iterator[Finding]:
    """All findings, in the order of printing: from what everything needs to single pods."""
    checks: dict[str, Callable[[], Iterator[Finding]]] = {
        "API server": lambda: api_server(where),
        "operator": lambda: operator(where, system),
        "pools": lambda: objects(where),
        "schedulers": lambda: schedulers(where),
        "pods": lambda: pods_of(where),
    }
    for what, check in checks.items():
        try:
            yield from check()
        except CliError as error:
            yield Finding(what, f"not looked at: {error}", Verdict.NOTE)


def _lines(findings: list[Finding]) -> Iterator[str]:
    width = max(len(one.what) for one in findings)
    for one in findings:
        word, colour = one.verdict.value
        yield f"{click.style(f'{_WORDS.get(word, word):>8}', fg=colour)}  {one.what:<{width}}  {one.found}"
        if one.remedy:
            yield f"{'':>8}  {'':<{width}}  {one.remedy}"


def _as_json(finding: Finding) -> dict[str, str]:
    word = finding.verdict.value[0]
    said = {"what": finding.what, "found": finding.found, "remedy": finding.remedy}
    return {"verdict": _WORDS.get(word, word), **said}
