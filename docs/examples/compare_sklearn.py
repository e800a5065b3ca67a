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
measured = {}
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
    unit, times = ("R2", 1) if is_regression else ("%", 100)
    differences = [o - t for o, t in zip(ours, theirs)]
    for who, values in [("esper", ours), ("sklearn", theirs), ("difference", differences)]:
        measured |= results.mean_and_deviation(f"{name}.{who}", unit, [times * value for value in values])
    measured |= {f"{name}.seeds_kept": results.measurement("count", [kept / len(ours)])}
    of = lambda what, number="median": f"{measured[f'{name}.{what}'][number]:.3f}"
    cells = [f"{of(f'{who}.mean')} ± {of(f'{who}.deviation')} {unit}" for who in ("esper", "sklearn")]
    print(f"| {name} | {cells[0]} | {cells[1]} | {of('difference.mean')} | {of('difference', 'min')} | {of('seeds_kept')} |", flush=True)
if len(sys.argv) > 3:
    notes = "NAME.esper, NAME.sklearn: accuracy or R2 on the test rows, one value per split; NAME.difference: of both in a split; .mean and .deviation of them; .seeds_kept: per run"
    config = {"splits": "1 to 10", "scikit-learn": sklearn.__version__, "pandas": pandas.__version__, "peer": "StandardScaler, MLP with max_iter=2000"}
    results.write(sys.argv[3], "python docs/examples/compare_sklearn.py target/release/esper FOLDER RESULT.json", notes, out, config, measured)
