"""Default settings on files as scikit-learn exports them, against its standardized MLP on the same rows.

    pip install scikit-learn pandas
    cargo build --release -p esper
    python docs/examples/compare_sklearn.py target/release/esper FOLDER [RESULT.json]

Each of ten splits is a run of `esper train --data FOLDER/NAME.csv` with nothing set but the seed of the split; the rows of
its parts are read from `rows.json`. scikit-learn learns from the training rows and is measured on the test rows. What
`esper` is measured by on the test rows is the network with the lowest loss on its validation rows, which scikit-learn does not use.
"""

import json
import pathlib
import statistics
import subprocess
import sys

import pandas
import results
import sklearn
from sklearn import datasets
from sklearn.metrics import accuracy_score, r2_score
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

SPLITS = range(1, 11)
esper, folder = sys.argv[1], pathlib.Path(sys.argv[2])
folder.mkdir(parents=True, exist_ok=True)
measurements = {}
print("| data | esper | scikit-learn | difference | worst split | kept seeds |\n|---|---|---|---|---|---|")
for name in ["wine", "iris", "breast_cancer", "diabetes"]:
    options = {"scaled": False} if name == "diabetes" else {}
    path = folder / f"{name}.csv"
    getattr(datasets, f"load_{name}")(as_frame=True, **options).frame.to_csv(path, index=False)
    table = pandas.read_csv(path)
    x, y = table.iloc[:, :-1].to_numpy(), table.iloc[:, -1].to_numpy()
    is_regression = name == "diabetes"
    ours, theirs, kept = [], [], 0
    for split in SPLITS:
        out = folder / f"{name}-{split}"
        command = [esper, "train", "--data", path, "--out", out, "--set", f"data.split_seed={split}", "--json"]
        done = subprocess.run([*command, "--progress", "off"], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{name}, split {split}: {done.stderr}")
        summary = json.loads(done.stdout.splitlines()[-1])
        rows = json.loads((out / "rows.json").read_text())
        kept += sum(seed["stage"] == "fossilized" for seed in summary["seeds"])
        ours.append(summary["test_measures"]["r2"] if is_regression else summary["test_accuracy"])
        kind = MLPRegressor if is_regression else MLPClassifier
        model = make_pipeline(StandardScaler(), kind(max_iter=2000, random_state=split))
        model.fit(x[rows["train"]], y[rows["train"]])
        measure = r2_score if is_regression else accuracy_score
        theirs.append(measure(y[rows["test"]], model.predict(x[rows["test"]])))
    shown = (lambda v: f"{v:.3f}") if is_regression else (lambda v: f"{100 * v:.2f} %")
    (a, b), gap = (statistics.mean(ours), statistics.mean(theirs)), min(o - t for o, t in zip(ours, theirs))
    spread = [shown(statistics.stdev(values)) for values in (ours, theirs)]
    print(f"| {name} | {shown(a)} ± {spread[0]} | {shown(b)} ± {spread[1]} | {shown(a - b)} | {shown(gap)} | {kept / len(ours):.1f} |", flush=True)
    unit = "R2" if is_regression else "ratio"
    for who, values in [("esper", ours), ("sklearn", theirs), ("difference", [o - t for o, t in zip(ours, theirs)])]:
        measurements |= {f"{name}.{who}": results.measurement(unit, values)}
    measurements |= {f"{name}.difference.mean": results.measurement(unit, [a - b])}
if len(sys.argv) > 3:
    notes = "NAME.esper, NAME.sklearn: accuracy or R2 on the test rows, one value per split; NAME.difference: of the same split; .mean: of the means"
    config = {"splits": "1 to 10", "scikit-learn": sklearn.__version__, "pandas": pandas.__version__, "peer": "StandardScaler, MLP with max_iter=2000"}
    results.write(sys.argv[3], "python docs/examples/compare_sklearn.py target/release/esper FOLDER RESULT.json", notes, out, config, measurements)
