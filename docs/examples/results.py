"""Figures of whole runs as a result like those of `esper bench`: `baselines/src/result.rs` has the format."""

import json
import os
import pathlib
import platform
import statistics
import time


def measurement(unit, values):
    """All values of a quantity, with nearest-rank percentiles."""
    ordered = sorted(float(value) for value in values)
    n = len(ordered)
    rank = lambda percent: ordered[max(1, -(-n * percent // 100)) - 1]
    found = {"unit": unit, "n": n, "min": ordered[0], "median": rank(50), "p95": rank(95), "max": ordered[-1]}
    return found | ({"samples": ordered} if n > 1 else {})


def mean_and_deviation(name, unit, values):
    """All values, and as quantities of their own their mean and sample deviation."""
    of = {name: values, f"{name}.mean": [statistics.mean(values)], f"{name}.deviation": [statistics.stdev(values)]}
    return {name: measurement(unit, values) for name, values in of.items()}


def write(path, command, notes, run, config, measurements):
    """Writes PATH; `run` is the folder of one of the runs, which says what trained it."""
    commit = json.loads((pathlib.Path(run) / "run.json").read_text())["versions"]["git_commit"]
    if commit is None:
        raise SystemExit("the program was not built from a commit: expected a build without changes of one's own")
    models = [line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")]
    environment = {
        "commit": commit,
        "cpu": models[0] if models else None,
        "num_cpus": len(os.sched_getaffinity(0)),
        "target": f"{platform.system().lower()}-{platform.machine()}",
        "profile": "release",
        "candle": None,
        "rayon_num_threads": os.environ.get("RAYON_NUM_THREADS"),
        "measured_at_unix_s": int(time.time()),
    }
    write_measured(path, command, notes, environment, config, measurements)


def write_measured(path, command, notes, environment, config, measurements):
    """Writes PATH, of a program whose environment is known."""
    path = pathlib.Path(path)
    result = {"schema": 1, "name": path.stem, "command": command, "notes": notes, "environment": environment}
    result |= {"config": config, "measurements": measurements, "metrics": []}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
