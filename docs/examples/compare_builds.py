"""The reference workload of two builds in turn: how much slower the second one is, with an interval.

    python docs/examples/compare_builds.py OLD NEW [RESULT.json]

OLD and NEW are programs of two commits. Each pair runs `esper bench reference` of both, in an order that changes from pair to pair, so that a
machine whose speed drifts slows both. `JSON` of `esper bench` itself has no pairs.
"""

import json
import math
import pathlib
import statistics
import subprocess
import sys
import tempfile

import results

PAIRS = 12
STUDENT_95 = 2.201  # two-sided, 11 degrees of freedom
QUANTITIES = ["epoch_steps", "epoch_whole", "linear16.step", "linear4.step"]


def measured(program):
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([program, "bench", "reference", "--out", folder], check=True, capture_output=True)
        return json.loads((pathlib.Path(folder) / "reference-cpu.json").read_text())


ratios = {name: {"median": [], "fastest": []} for name in QUANTITIES}
for pair in range(PAIRS):
    programs = sys.argv[1:3] if pair % 2 else sys.argv[2:0:-1]
    of = dict(zip(programs, map(measured, programs)))
    old, new = of[sys.argv[1]], of[sys.argv[2]]
    for name in QUANTITIES:
        a, b = new["measurements"][name], old["measurements"][name]
        ratios[name]["median"].append(a["median"] / b["median"])
        ratios[name]["fastest"].append(a["min"] / b["min"])
found = {}
print("| quantity | of | new / old | 95 % interval |\n|---|---|---|---|")
for name, kinds in ratios.items():
    for kind, values in kinds.items():
        logs = [math.log(value) for value in values]
        mean, half = statistics.mean(logs), STUDENT_95 * statistics.stdev(logs) / math.sqrt(PAIRS)
        ends = {"mean": mean, "low": mean - half, "high": mean + half}
        found |= {f"{name}.{kind}": results.measurement("ratio", values)}
        found |= {f"{name}.{kind}.{end}": results.measurement("ratio", [math.exp(value)]) for end, value in ends.items()}
        print(f"| {name} | {kind} | {math.exp(mean):.3f} | {math.exp(mean - half):.3f} to {math.exp(mean + half):.3f} |")
if len(sys.argv) > 3:
    notes = "QUANTITY.median, .fastest: of the new build over the old one, of `esper bench reference` of both, one after the other; .mean: geometric mean of the pairs, .low and .high: its 95 % interval (Student's t of logarithms)"
    config = {"old": old["environment"]["commit"], "pairs": str(PAIRS)}
    environment = new["environment"]
    command = "python docs/examples/compare_builds.py OLD NEW RESULT.json"
    results.write_measured(sys.argv[3], command, notes, environment, config, found)
