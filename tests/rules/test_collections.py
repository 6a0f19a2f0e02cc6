"""A reload of many rules leaves the garbage collector little to visit.

A full collection visits every object of the process, and pauses all of its threads meanwhile. Python starts one when
the objects that survived younger collections are a quarter of those that survived the last full one.
"""

import subprocess
import sys
from pathlib import Path

RULES = 300

SCRIPT = """
import gc, sys
from pathlib import Path
from ratelimit_mw import RateLimiter

file = Path(sys.argv[1])
kept = [[number] for number in range(30_000)]

def write(limit):
    file.write_text("domain: d\\nreload: off\\nrules:\\n" + "".join(
        f"  - {{name: r{n}, match: {{path: '/a{n}/{{id}}'}}, by: [ip, path], limit: [{limit}/m, 20/h]}}\\n"
        for n in range(int(sys.argv[2]))
    ))

most = 0
def count(phase, info):
    global most
    most = max(most, len(gc.get_objects()))

write(1)
limiter = RateLimiter(file)
for limit in (2, 3):  # the first reload also makes what is made once
    write(limit)
    gc.collect()
    full, before, most = gc.get_stats()[2]["collections"], len(gc.get_objects()), 0
    gc.callbacks.append(count)
    limiter.reload()
    gc.callbacks.remove(count)
print(gc.get_stats()[2]["collections"] - full, most - before)
"""


def test_a_reload_of_300_rules_starts_no_full_collection_in_a_process_with_30_000_objects(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "rules.yaml"), str(RULES)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    full, most = map(int, ran.stdout.split())
    assert full == 0
    assert most < 8 * RULES  # the file is read rule by rule, and a compiled rule has 3 objects
