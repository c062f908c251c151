# SPDX-License-Identifier: GPL-2.0-only
"""pytest plug-in that reports by TAP, as the other test programs do: pytest -p pytest_tap."""


def pytest_configure(config):
    # A line of our own for each test takes the place of pytest's dots and summary.
    config.option.verbose = -2


def _name(report):
    return report.nodeid.split("::", 1)[-1].replace("_", " ").removeprefix("test ")


def pytest_runtest_logreport(report):
    if report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        print(f"\nok - {_name(report)} # SKIP {reason.removeprefix('Skipped: ')}", flush=True)
    elif report.failed:
        print(f"\nnot ok - {_name(report)}{'' if report.when == 'call' else ' (' + report.when + ')'}", flush=True)
    elif report.when == "call":
        print(f"\nok - {_name(report)}", flush=True)
        # What a test counted is worth reading.
        for line in report.capstdout.splitlines():
            print(f"# {line}", flush=True)


def pytest_collectreport(report):
    if report.failed:
        print(f"\nnot ok - {report.nodeid} is read", flush=True)
