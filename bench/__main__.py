"""`python -m bench [ROW …] [--quick]`: measure all rows, or those named, and print their figures.

A full run (no row named, not quick) is one run of one commit. It writes bench/results/measured.json and the pictures,
and puts the figures into the pages that `bench/pages.py` names. A run of single rows writes no figures. A quick run
draws no pictures either.
"""

import argparse
import logging
import os
import time
from pathlib import Path

from bench import pages, report
from bench.measure import Effort
from bench.table import ROWS


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure this package beside its peers.")
    names = [row.name for row in ROWS]
    parser.add_argument("row", nargs="*", help=f"rows to measure: {', '.join(names)}. All, if none is named")
    parser.add_argument("--quick", action="store_true", help="few rounds and few requests, for development")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures of this run to another file")
    parser.add_argument("--tables", action="store_true", help="write the tables of the pages again, from the last run")
    arguments = parser.parse_args()
    if unknown := set(arguments.row).difference(names):
        parser.error(f"no row is called {', '.join(sorted(unknown))}. There are {', '.join(names)}")
    if arguments.tables:
        pages.publish(report.read())
        return
    logging.disable(logging.CRITICAL)
    effort = Effort(arguments.quick)
    asked = [row for row in ROWS if row.name in arguments.row or not arguments.row]
    begun, results = time.monotonic(), report.Results(report.conditions(), {})
    print(report.sentence(results.conditions), flush=True)
    for row in asked:
        start, cpu = time.monotonic(), _cpu()
        print(f"\n{row.title}", flush=True)
        results.rows[row.name] = found = []
        for figure in row.figures(effort):
            found.append(figure)
            print(report.line(figure), flush=True)
        print(f"  [{row.name}: {time.monotonic() - start:.0f} s, CPU {_cpu() - cpu:.0f} s]", flush=True)
    print(f"\n{report.summary(results)}, in {(time.monotonic() - begun) / 60:.1f} minutes")
    if arguments.json:
        report.write(results, arguments.json)
    elif not arguments.quick and not arguments.row:
        report.write(results)
        pages.publish(results)


def _cpu() -> float:
    """Seconds of the processor that this process and all that it started have had."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


if __name__ == "__main__":
    main()
