"""`kubectl aegaeon doctor`: finds what is wrong with an installation and its pools, and how to correct it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import click

from aegaeon_cli.errors import CliError, NoAnswerError
from aegaeon_cli.findings import Finding, Verdict
from aegaeon_cli.kubectl.access import Where, cluster_options, output_option
from aegaeon_cli.kubectl.checks import api_server, nodes, not_ready, objects, operator, pods_of, schedulers

Check = Callable[[], Iterator[Finding]]
_WORDS = {"missing": "wrong"}  # a machine lacks something; in a cluster something is wrong


@click.command()
@cluster_options
@output_option
@click.option(
    "--system", default="aegaeon-system", show_default=True, metavar="NAME", help="Namespace of the operator."
)
def doctor(*, where: Where, output: str, system: str) -> None:
    """Report what is wrong; the exit status is 1 when something is.

    Objects that the user of the kubeconfig has no permission to read are not checked, and reported as notes.

    \b
    Example:
      kubectl aegaeon doctor --all-namespaces
      kubectl aegaeon doctor -n default -o json
    """
    findings = list(examine(where, system))
    if output == "json":
        click.echo(json.dumps([_as_json(finding) for finding in findings], indent=1))
    else:
        for line in _lines(findings):
            click.echo(line)
    raise SystemExit(int(any(finding.verdict is Verdict.MISSING for finding in findings)))


def examine(where: Where, system: str) -> Iterator[Finding]:
    """All findings, in the order of printing: from the API server, which everything needs, to single pods.

    Nodes come first, as ports of pods on nodes that are not ready are not tried; then all checks run in parallel.
    """
    try:
        yield from api_server(where)
    except NoAnswerError as error:
        remedy = "nothing else can be checked; verify the kubeconfig and the network path to the API server"
        yield Finding("API server", str(error), Verdict.MISSING, remedy)
        return
    except CliError as error:
        yield _not_looked_at("API server", error)
    try:
        lost = not_ready(where)
    except CliError as error:
        lost = {}
        yield _not_looked_at("nodes", error)
    yield from nodes(lost)
    known = replace(where, lost=frozenset(lost))
    checks: dict[str, Check] = {
        "operator": lambda: operator(known, system),
        "pools": lambda: objects(known, system),
        "schedulers": lambda: schedulers(known),
        "pods": lambda: pods_of(known),
    }
    with ThreadPoolExecutor(len(checks)) as threads:
        for findings in threads.map(_checked, checks, checks.values()):
            yield from findings


def _checked(what: str, check: Check) -> list[Finding]:
    findings: list[Finding] = []
    try:
        findings.extend(check())
    except CliError as error:
        findings.append(_not_looked_at(what, error))
    return findings


def _not_looked_at(what: str, error: CliError) -> Finding:
    """A note where the user has no permission; an API server that does not answer is wrong."""
    verdict = Verdict.MISSING if isinstance(error, NoAnswerError) else Verdict.NOTE
    return Finding(what, f"not checked: {error}", verdict)


def _lines(findings: list[Finding]) -> Iterator[str]:
    width = max(len(finding.what) for finding in findings)
    for finding in findings:
        word, colour = finding.verdict.value
        yield f"{click.style(f'{_WORDS.get(word, word):>8}', fg=colour)}  {finding.what:<{width}}  {finding.text}"
        if finding.remedy:
            yield f"{'':>8}  {'':<{width}}  {finding.remedy}"


def _as_json(finding: Finding) -> dict[str, str]:
    word = finding.verdict.value[0]
    fields = {"what": finding.what, "found": finding.text, "remedy": finding.remedy}
    return {"verdict": _WORDS.get(word, word), **fields}
