"""Writes torch_optimizers.json: 100 steps of PyTorch's optimizers, and 100 rates of its schedulers.

Made with Python and PyTorch of the versions in the file, on the CPU, in float64:

    pip install torch
    python torch_optimizers.py > torch_optimizers.json

Parameters are `w` (2, 3) and `b` (3); element i of them starts at sin(i + 1), and its gradient in step n is
cos(0.7 n (i + 1)) + 0.3 x, with x the element as it is. Lion is not part of PyTorch: it is algorithm 2 of Chen et al. 2023
(arXiv 2302.06675), written down here with PyTorch's tensors. Muon makes `w` orthogonal in float64 like everything else, and in
`muon_rounded` in bfloat16, as PyTorch does; AdamW moves `b` beside it.
"""

import json
import platform

import torch

STEPS = 100
RATE = 0.02


class Lion(torch.optim.Optimizer):
    def __init__(self, groups, lr, betas, weight_decay):
        super().__init__(groups, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                c = beta1 * m + (1 - beta1) * p.grad
                p -= group["lr"] * (torch.sign(c) + group["weight_decay"] * p)
                self.state[p]["m"] = beta2 * m + (1 - beta2) * p.grad


def run(make):
    w = torch.nn.Parameter(torch.sin(torch.arange(1, 7, dtype=torch.float64)).reshape(2, 3))
    b = torch.nn.Parameter(torch.sin(torch.arange(7, 10, dtype=torch.float64)))
    optimizer = make(w, b)
    for n in range(STEPS):
        for p, first in ((w, 1), (b, 7)):
            place = torch.arange(first, first + p.numel(), dtype=torch.float64).reshape(p.shape)
            p.grad = torch.cos(0.7 * n * place) + 0.3 * p.detach()
        optimizer.step()
    return w.detach().flatten().tolist() + b.detach().tolist()


def all_alike(kind, **settings):
    return run(lambda w, b: kind([{"params": [w, b]}], lr=RATE, **settings))


def rates(make):
    p = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([p], lr=1.0)
    scheduler = make(optimizer)
    found = []
    for _ in range(STEPS):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


schedulers = torch.optim.lr_scheduler
adam = dict(betas=(0.9, 0.99), eps=1e-8)


def two_groups(w, b):
    """No decay of the vector, which is faster."""
    groups = [{"params": [w], "weight_decay": 0.1}, {"params": [b], "weight_decay": 0.0, "lr": 2 * RATE}]
    return torch.optim.AdamW(groups, lr=RATE, **adam)


def frozen(w, b):
    return torch.optim.AdamW([{"params": [w]}, {"params": [b], "lr": 0.0}], lr=RATE, weight_decay=0.1, **adam)


class Muon:
    def __init__(self, w, b, **settings):
        muon = torch.optim.Muon([w], lr=RATE, adjust_lr_fn="match_rms_adamw", weight_decay=0.1, momentum=0.9, **settings)
        self.both = muon, torch.optim.AdamW([b], lr=RATE, weight_decay=0.1, **adam)

    def step(self):
        for optimizer in self.both:
            optimizer.step()


def unrounded(make):
    """With a bfloat16 that rounds nothing."""
    rounds = torch.Tensor.bfloat16
    torch.Tensor.bfloat16 = torch.Tensor.clone
    try:
        return run(make)
    finally:
        torch.Tensor.bfloat16 = rounds


def wsd(optimizer):
    stable = schedulers.ConstantLR(optimizer, factor=1.0, total_iters=80)
    fall = schedulers.LinearLR(optimizer, start_factor=1.0, end_factor=0.1, total_iters=20)
    return schedulers.SequentialLR(optimizer, [stable, fall], [80])


def warm(optimizer):
    rise = schedulers.LambdaLR(optimizer, lambda step: min(step + 1, 10) / 10)
    fall = schedulers.CosineAnnealingLR(optimizer, T_max=90, eta_min=0.05)
    return schedulers.SequentialLR(optimizer, [rise, fall], [10])


print(
    json.dumps(
        {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "parameters": {
                "sgd": all_alike(torch.optim.SGD, weight_decay=0.05),
                "momentum": all_alike(torch.optim.SGD, momentum=0.9, weight_decay=0.05),
                "nesterov": all_alike(torch.optim.SGD, momentum=0.8, nesterov=True, weight_decay=0.01),
                "adam_w": all_alike(torch.optim.AdamW, weight_decay=0.1, **adam),
                "lion": all_alike(Lion, betas=(0.9, 0.99), weight_decay=0.1),
                "muon": unrounded(Muon),
                "muon_plain": unrounded(lambda w, b: Muon(w, b, nesterov=False)),
                "muon_rounded": run(Muon),
                "groups": run(two_groups),
                "frozen": run(frozen),
            },
            "rates": {
                "cosine": rates(warm),
                "linear": rates(lambda o: schedulers.LinearLR(o, start_factor=1.0, end_factor=0.1, total_iters=STEPS)),
                "wsd": rates(wsd),
                "one_cycle": rates(lambda o: schedulers.OneCycleLR(o, max_lr=1.0, total_steps=STEPS)),
            },
        },
        indent=1,
    )
)
