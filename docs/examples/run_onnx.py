"""Runs an exported network by its `model.onnx`: python run_onnx.py DIR < inputs.csv > logits.csv

Each line of the input is a prepared sample, each line of the output its logits. The property `preparation` of the file says
how samples are prepared, and what outputs mean. Needs numpy and onnxruntime.
"""
import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession(Path(sys.argv[1]) / "model.onnx", providers=["CPUExecutionProvider"])
preparation = json.loads(session.get_modelmeta().custom_metadata_map["preparation"])
print("outputs:", ", ".join(preparation["target"]["names"]), file=sys.stderr)
inputs = np.loadtxt(sys.stdin, delimiter=",", ndmin=2, dtype=np.float32)
(logits,) = session.run(["logits"], {"inputs": inputs})
np.savetxt(sys.stdout, logits, delimiter=",")
