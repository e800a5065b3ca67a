"""Writes data/tests/golden/mnist1d_reference.json: what the published MNIST-1D generator does.

    pip install numpy==2.3.4 scipy==1.16.3
    pip download mnist1d==0.0.2.post1 --no-deps && unzip -o mnist1d-0.0.2.post1-py3-none-any.whl -d mnist1d-wheel
    python data/tests/scripts/mnist1d_reference.py mnist1d-wheel > data/tests/golden/mnist1d_reference.json

Two parts. "cases" runs the transformation with scripted draws in place of random ones: the port must give the same 40
numbers. "statistics" describes 20 data sets of 5 000 samples: the port draws from another generator, so only the
distribution can agree.
"""

import json
import sys
import types

for unused in ("requests", "matplotlib", "matplotlib.pyplot"):
    sys.modules[unused] = types.ModuleType(unused)
sys.path.insert(0, sys.argv[1])

import numpy as np  # noqa: E402
from mnist1d import data  # noqa: E402
from mnist1d.transform import transform  # noqa: E402

NUM_SETS = 20


def scripted_case(label, units, shift, phase):
    pad, scale, shear = units
    uniform = iter([pad, scale, shear])
    phases = iter([phase, phase + 1.0])
    np.random.rand = lambda: next(uniform)
    np.random.choice = lambda bound: shift
    np.random.randn = lambda length: np.sin(1.7 * np.arange(length) + next(phases))
    templates = data.get_templates()
    output, _ = transform(templates["x"][label], templates["t"], data.get_dataset_args())
    return {"label": label, "pad": pad, "scale": scale, "shear": shear, "shift": shift, "phase": phase,
            "output": [float(f"{value:.15g}") for value in output]}


def statistics():
    inputs, labels = [], []
    for seed in range(NUM_SETS):
        args = data.get_dataset_args()
        args.seed = seed
        made = data.make_dataset(args)
        inputs += [made["x"], made["x_test"]]
        labels += [made["y"], made["y_test"]]
    x, y = np.concatenate(inputs), np.concatenate(labels)
    classes = [x[y == label] for label in range(10)]
    lags = [1, 2, 4, 8]
    rounded = lambda values: [round(float(value), 4) for value in values]
    return {
        "samples_per_class": len(classes[0]),
        "class_mean": [rounded(part.mean(0)) for part in classes],
        "class_std": [rounded(part.std(0)) for part in classes],
        "lags": lags,
        "lag_product": [rounded([(part[:, lag:] * part[:, :-lag]).mean() for lag in lags]) for part in classes],
        "quantile_levels": [0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99],
        "quantiles": rounded(np.quantile(x, [0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99])),
    }


measured = statistics()
cases = [
    scripted_case(0, (0.0, 0.0, 0.0), 0, 0.0),
    scripted_case(1, (0.999, 0.999, 0.999), 47, 0.5),
    scripted_case(2, (0.5, 0.25, 0.75), 13, 1.0),
    scripted_case(3, (0.13, 0.87, 0.31), 30, 2.0),
    scripted_case(4, (0.77, 0.61, 0.05), 7, 3.0),
    scripted_case(5, (0.31, 0.5, 0.5), 21, 4.0),
    scripted_case(6, (0.9, 0.1, 0.9), 44, 5.0),
    scripted_case(7, (0.04, 0.4, 0.6), 1, 6.0),
    scripted_case(8, (0.62, 0.7, 0.2), 36, 7.0),
    scripted_case(9, (0.45, 0.33, 0.66), 25, 8.0),
]
lines = [f"    {json.dumps(case)}" for case in cases]
print('{\n  "cases": [\n' + ",\n".join(lines) + '\n  ],\n  "statistics": {')
print(",\n".join(f"    {json.dumps(name)}: {json.dumps(value)}" for name, value in measured.items()))
print("  }\n}")
