"""Seven small tables, on which growth may do harm: four that scikit-learn brings, and three that it draws.

Values to predict are made classes: above the median or not, for a study counts right answers.

    pip install scikit-learn pandas
    python docs/examples/small_tables.py FOLDER
    esper study --data FOLDER/wine.csv,FOLDER/iris.csv,… --policies heuristic,off --seeds 10
"""

import pathlib
import sys

import pandas
from sklearn import datasets

folder = pathlib.Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
brought = ["wine", "iris", "breast_cancer", "diabetes"]
tables = {name: getattr(datasets, f"load_{name}")(return_X_y=True) for name in brought}
tables["moons"] = datasets.make_moons(n_samples=600, noise=0.3, random_state=0)
tables["clusters"] = datasets.make_classification(n_samples=600, n_informative=5, n_classes=3, random_state=0)
tables["friedman"] = datasets.make_friedman1(n_samples=600, noise=1.0, random_state=0)
for name, (x, y) in tables.items():
    frame = pandas.DataFrame(x, columns=[f"x{column}" for column in range(x.shape[1])])
    above = (y > sorted(y)[len(y) // 2]).astype(int)
    frame.assign(target=above if name in ("diabetes", "friedman") else y).to_csv(folder / f"{name}.csv", index=False)
