"""Runs an exported network whose host is an MLP, by docs/export.md alone: python export_reader.py DIR < rows.csv > logits.csv

Each line of the input is a sample as it stands in the data, each line of the output its logits. Needs numpy; computes with
PyTorch where that is installed. Hosts, types, seeds and blends that are not among those below are refused by name.
"""
import json
import struct
import sys
from pathlib import Path

import numpy as np

try:
    import torch
except ImportError:
    torch = None
known = lambda name, names, what: name if str(name) in names else sys.exit(f"the {what} {name}: expected one of {', '.join(names)}")


def read(folder):
    model = json.loads((folder / "model.json").read_text())
    if model.get("format") != 1:
        sys.exit(f"model.json has the format {model.get('format')}: expected 1")
    data = (folder / "model.safetensors").read_bytes()
    if len(data) != model["weights"]["bytes"]:
        sys.exit(f"model.safetensors has {len(data)} bytes: expected {model['weights']['bytes']}")
    (size,) = struct.unpack("<Q", data[:8])
    header, types = json.loads(data[8:8 + size]), {"F32": np.float32, "F64": np.float64}
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            values = np.frombuffer(data[8 + size + begin:8 + size + end], types[known(entry["dtype"], types, "type")])
            tensors[name] = values.reshape(entry["shape"]) if torch is None else torch.tensor(values).reshape(entry["shape"])
    return model, tensors


def run(model, w, h):
    network, relu, tanh = model["network"], lambda x: x * (x > 0), (torch or np).tanh
    linear = lambda x, name: x @ w[name + ".weight"] + w[name + ".bias"]
    normalize = lambda x: (x - x.mean(-1).reshape(-1, 1)) / (((x - x.mean(-1).reshape(-1, 1)) ** 2).mean(-1) + 1e-5).reshape(-1, 1) ** 0.5
    bottleneck = lambda x, p: linear(relu(linear(x, p + "down")), p + "up")
    blueprints = {"mlp": bottleneck, "norm_mlp": lambda x, p: bottleneck(normalize(x), p),
                  "low_rank": lambda x, p: x @ w[p + "down.weight"] @ w[p + "up.weight"],
                  "widen": lambda x, p: relu(linear(x, p + "down")) @ w[p + "up.weight"]}
    blends = {"residual": lambda h, f, a: h + a * f, "convex": lambda h, f, a: (1 - a) * h + a * f,
              "multiply": lambda h, f, a: h * (1 + a * tanh(f))}
    num_hidden = len(network["host"][known(*network["host"], ["mlp"], "host")]["hidden"])
    slots = ["input"] + [f"{kind}{i}" for i in range(num_hidden) for kind in ("hidden", "around")]
    for seed in network["seeds"]:
        known(seed["slot"], slots, "slot")

    def grafted(slot, h, seen=None):
        for seed in (seed for seed in network["seeds"] if seed["slot"] == slot):
            prefix = f"seed.{int(seed['id'].split('-')[1]):04}."
            f = blueprints[known(seed["blueprint"], blueprints, "blueprint")](h if seen is None else seen, prefix)
            h = blends[known(seed["blend"], blends, "blend")](h, f, seed["alpha"])
        return h

    # Seeds around a layer see what it sees, and act where the next one adds up.
    seen, h = None, grafted("input", h)
    for i in range(num_hidden + 1):
        sum = linear(h, f"host.layer{i}" if i < num_hidden else "host.head")
        sum = sum if i == 0 else grafted(f"around{i - 1}", sum, seen)
        seen, h = h, sum if i == num_hidden else grafted(f"hidden{i}", relu(sum))
    return h


model, tensors = read(Path(sys.argv[1]))
rows, scaling = np.loadtxt(sys.stdin, delimiter=",", ndmin=2), model["preparation"]["scaling"]
rows = ((rows - scaling["means"]) / scaling["scales"] if scaling["means"] else rows).astype({"f32": np.float32, "f64": np.float64}[model["network"]["dtype"]])
np.savetxt(sys.stdout, np.asarray(run(model, tensors, rows if torch is None else torch.tensor(rows))), delimiter=",")
