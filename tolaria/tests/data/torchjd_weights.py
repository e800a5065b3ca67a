"""Writes torchjd_weights.json: the weights that TorchJD gives for fixed matrices of inner products.

Made with Python 3.11.7, torchjd 0.18.0 (extras cagrad and quadprog-projector), torch 2.15.0 on the CPU, numpy 2.4.6,
cvxpy 1.9.3, clarabel 0.11.1, qpsolvers 4.13.0, quadprog 0.1.14; it takes minutes:

    pip install "torchjd[cagrad,quadprog-projector]==0.18.0" torch==2.15.0
    python torchjd_weights.py > torchjd_weights.json

All in float64. TorchJD draws each owner's order of projections with `torch.randperm`; here that function is replaced by
one that returns the orders written beside the weights, owner by owner (an owner skips itself). `pcgrad` has the sum
form, the others the average form. UPGrad runs with its regularization lowered from 1e-4 to 1e-12, MGDA with
epsilon 1e-9 and 200000 iterations; `upgrad_default` and `mgda_default` are those of the default settings.
"""

import json

import numpy as np
import torch
from torchjd.aggregation import AlignedMTLWeighting, CAGradWeighting, MGDAWeighting, PCGradWeighting, UPGradWeighting
from torchjd.linalg import QuadprogProjector

RADIUS = 0.4


def gradients(rng, kind, owners):
    """Rows whose inner products are of the kind named."""
    dimension = owners + 3
    rows = rng.standard_normal((owners, dimension))
    if kind == "conflicting":
        rows -= 0.9 * rows.mean(axis=0) * owners / (owners - 1)
    elif kind == "aligned":
        rows = np.abs(rows)
    elif kind == "uneven":
        rows *= 10.0 ** rng.uniform(-1.5, 1.5, (owners, 1))
    elif kind == "ill-conditioned":
        rows[-1] = rows[:-1].sum(axis=0) * 0.5 + 1e-3 * rows[-1]
    elif kind == "opposed":
        rows[-1] = -0.7 * rows[0] + 0.05 * rows[-1]
    return rows


def pcgrad(inner, orders):
    """TorchJD's weights for given orders of projections."""
    remaining = iter(orders)
    drawn = torch.randperm
    torch.randperm = lambda _count: torch.tensor(next(remaining))
    try:
        return PCGradWeighting()(inner)
    finally:
        torch.randperm = drawn


def main():
    rng = np.random.default_rng(20240607)
    cases = []
    for kind in ("random", "conflicting", "aligned", "uneven", "ill-conditioned", "opposed"):
        for owners in range(2, 9):
            rows = gradients(rng, kind, owners)
            product = rows @ rows.T
            inner = torch.tensor((product + product.T) / 2.0, dtype=torch.float64)
            orders = [rng.permutation(owners).tolist() for _ in range(owners)]
            exact = QuadprogProjector(norm_eps=1e-12, reg_eps=1e-12)
            weights = {
                "pcgrad": pcgrad(inner, orders),
                "mgda": MGDAWeighting(epsilon=1e-9, max_iters=200_000)(inner),
                "mgda_default": MGDAWeighting()(inner),
                "upgrad": UPGradWeighting(projector=exact)(inner),
                "upgrad_default": UPGradWeighting()(inner),
                "cagrad": CAGradWeighting(c=RADIUS)(inner),
                "aligned_mtl": AlignedMTLWeighting()(inner),
            }
            orders = [[j for j in order if j != i] for i, order in enumerate(orders)]
            case = {"kind": kind, "inner": inner.flatten().tolist(), "orders": orders}
            cases.append(case | {name: found.tolist() for name, found in weights.items()})
    print('{"radius": %s, "cases": [' % RADIUS)
    print(",\n".join(json.dumps(case) for case in cases))
    print("]}")


main()
