"""Prints why a test failed when it has: a stage that is cut off at its limit comes to no summary."""

from __future__ import annotations

import pytest


class Reasons:
    """A plugin of the process that reports."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and "gpu/" in report.nodeid and terminal is not None:
            terminal.write_line(f"\n{report.nodeid}: {report.when} failed after {report.duration:.1f} s, because")
            terminal.write_line(report.longreprtext)
