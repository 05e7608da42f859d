"""Counts what became of the cases, in the columns of `KINDS`."""

from collections import Counter

from workspace import KINDS


def pytest_terminal_summary(terminalreporter):
    reports = [
        report for group in ("passed", "failed", "xfailed", "xpassed") for report in terminalreporter.getreports(group)
    ]
    kinds = Counter(dict(report.user_properties).get("outcome") for report in reports)
    if counted := {kind: kinds[kind] for kind in KINDS if any(kinds[kind] for kind in KINDS)}:
        total = ", ".join(f"{kind} {count}" for kind, count in counted.items())
        terminalreporter.write_line(f"bad inputs: {total}; {sum(counted.values())} in all")
