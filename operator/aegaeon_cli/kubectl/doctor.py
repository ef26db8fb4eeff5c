"""`kubectl aegaeon doctor`: what is wrong with an installation and its pools, and what to do about it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import click

from aegaeon_cli.doctor import Finding, Verdict
from aegaeon_cli.errors import CliError, NoAnswerError
from aegaeon_cli.kubectl.access import Where, cluster_options, output_option
from aegaeon_cli.kubectl.checks import api_server, nodes, not_ready, objects, operator, pods_of, schedulers

Check = Callable[[], Iterator[Finding]]
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
    """All findings, in the order of printing: from what everything needs to single pods.

    Nodes come first, since ports of pods on those that do not answer are not waited for; then all checks side by side.
    """
    try:
        yield from api_server(where)
    except NoAnswerError as error:
        remedy = "nothing else can be looked at: is it this cluster's kubeconfig, is the way there open?"
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
    """A note where this user may not look; an API server that does not answer is wrong."""
    verdict = Verdict.MISSING if isinstance(error, NoAnswerError) else Verdict.NOTE
    return Finding(what, f"not looked at: {error}", verdict)


def _lines(findings: list[Finding]) -> Iterator[str]:
    width = max(len(one.what) for one in findings)
    for one in findings:
        word, colour = one.verdict.value
        yield f"{click.style(f'{_WORDS.get(word, word):>8}', fg=colour)}  {one.what:<{width}}  {one.text}"
        if one.remedy:
            yield f"{'':>8}  {'':<{width}}  {one.remedy}"


def _as_json(finding: Finding) -> dict[str, str]:
    word = finding.verdict.value[0]
    said = {"what": finding.what, "found": finding.text, "remedy": finding.remedy}
    return {"verdict": _WORDS.get(word, word), **said}
