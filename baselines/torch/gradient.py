"""Times conflict-free combinations of gradients in PyTorch and prints one JSON object.

`jd` is the form of TorchJD: the Gram matrix of the stacked gradients, its copy on the host, the projections there, and
one product with the weights; `jd_floats` does the projections on plain numbers instead of small tensors. `torchjd` is
the library itself, where it is installed. `sequential` projects vector by vector, with a product and a read of it per
pair. All use the same order of projections. `NAME.step` adds one step of AdamW as one fused kernel.

Projections: Yu et al. 2020, arXiv 2001.06782. Follows `report.py` in one script.
"""

import argparse
import os
import sys
import time

# Of one quantity, with the limits of its repetitions.
QUANTITY_S = 1.0
MIN_REPETITIONS = 10
MAX_REPETITIONS = 500
WARM_UP = 3
FORMS = ("jd", "jd_floats", "torchjd", "sequential")
SEED = 7
# Common part of all gradients against their noise of 1: the sign of every inner product is beyond rounding.
COMMON = 0.3
# Norm of the difference of two forms over the norm of the result: products of 1e8 elements in float32.
TOLERANCE = 1e-4
# Elements of the buffers that the bandwidth is measured with, on a GPU and elsewhere.
LARGE, SMALL = 1 << 28, 1 << 24


class Clock:
    """Times work of one device, each repetition synchronized."""

    def __init__(self, torch, device):
        self.synchronize = torch.cuda.synchronize if device == "cuda" else (lambda: None)

    def once(self, work):
        self.synchronize()
        started = time.perf_counter()
        work()
        self.synchronize()
        return time.perf_counter() - started

    def times(self, work, wanted):
        """Microseconds of each repetition."""
        for _ in range(WARM_UP):
            work()
        estimate = max(self.once(work), 1e-7)
        count = min(max(int(QUANTITY_S / estimate), MIN_REPETITIONS), wanted)
        return [self.once(work) * 1e6 for _ in range(count)]

    def measure(self, work, wanted):
        return summary("us", self.times(work, wanted))


def summary(unit, values):
    values = sorted(values)
    return {
        "unit": unit,
        "n": len(values),
        "min": values[0],
        "median": percentile(values, 50),
        "p95": percentile(values, 95),
        "max": values[-1],
    }


class Window:
    """Gradients of one accumulation window, half of them against the other half."""

    def __init__(self, torch, device, num_rows, num_elements):
        self.torch, self.device = torch, device
        generator = torch.Generator(device=device).manual_seed(SEED)
        common = torch.randn(num_elements, device=device, generator=generator) * COMMON
        self.matrix = torch.randn(num_rows, num_elements, device=device, generator=generator)
        for row in range(num_rows):
            self.matrix[row].add_(common, alpha=-1.0 if row % 2 else 1.0)
        self.rows = list(self.matrix.unbind())
        # As the library draws them.
        torch.manual_seed(SEED)
        self.orders = [torch.randperm(num_rows).tolist() for _ in range(num_rows)]
        self.library = None

    def jd(self):
        torch, size = self.torch, len(self.rows)
        gram = (self.matrix @ self.matrix.T).cpu()
        total = torch.zeros(size)
        for i, order in enumerate(self.orders):
            weights = torch.zeros(size)
            weights[i] = 1.0
            for j in order:
                if j != i:
                    inner = gram[j] @ weights
                    if inner < 0.0:
                        weights[j] -= inner / gram[j, j]
            total += weights
        return total.to(self.device) @ self.matrix

    def jd_floats(self):
        torch, size = self.torch, len(self.rows)
        gram = (self.matrix @ self.matrix.T).tolist()
        total = [0.0] * size
        for i, order in enumerate(self.orders):
            weights = [0.0] * size
            weights[i] = 1.0
            for j in order:
                if j != i:
                    inner = sum(a * b for a, b in zip(gram[j], weights))
                    if inner < 0.0:
                        weights[j] -= inner / gram[j][j]
            total = [a + b for a, b in zip(total, weights)]
        return torch.tensor(total, device=self.device) @ self.matrix

    def torchjd(self):
        if self.library is None:
            from torchjd.aggregation import PCGrad

            self.library = PCGrad()
        self.torch.manual_seed(SEED)
        return self.library(self.matrix)

    def sequential(self):
        torch, rows = self.torch, self.rows
        squares = torch.stack([torch.dot(row, row) for row in rows]).tolist()
        total = None
        for i, order in enumerate(self.orders):
            projected = rows[i].clone()
            for j in order:
                if j != i:
                    inner = torch.dot(projected, rows[j]).item()
                    if inner < 0.0:
                        projected.add_(rows[j], alpha=-inner / squares[j])
            total = projected if total is None else total.add_(projected)
        return total

    def stack(self):
        return self.torch.stack(self.rows)


class Bench:
    """Fills the report, case by case."""

    def __init__(self, torch, device, wanted, report):
        self.torch, self.device, self.wanted, self.report = torch, device, wanted, report
        self.clock = Clock(torch, device)
        # Bytes per second.
        self.bandwidth = 0.0

    def case(self, name, work):
        """Adds what `work` returns under `name`, or why it failed."""
        self.report.running = {"name": name}
        try:
            found = work()
        except Exception as error:
            # The type too: messages of some assertions are empty.
            found = {"n": 0, "error": f"{type(error).__name__}: {error}".strip()[:2000]}
            print(f"{name}: {found['error']}", file=sys.stderr)
        self.report.running = None
        self.report.results.append(dict(name=name, **found))
        return found

    def bandwidths(self):
        torch, count = self.torch, LARGE if self.device == "cuda" else SMALL
        a, b = (torch.ones(count, device=self.device) for _ in range(2))
        works = [
            ("copy", 2, lambda: b.copy_(a)),
            ("sum", 1, lambda: torch.sum(a)),
            ("dot", 2, lambda: torch.dot(a, b)),
        ]
        for name, passes, work in works:
            self.case(f"bandwidth.{name}", lambda: self.rate(work, passes * 4 * count))

    def rate(self, work, num_bytes):
        found = summary("GB/s", [num_bytes / us * 1e-3 for us in self.clock.times(work, self.wanted)])
        self.bandwidth = max(self.bandwidth, found["median"] * 1e9)
        return found

    def window(self, forms, num_rows, num_elements):
        torch, prefix = self.torch, f"k{num_rows}.p{num_elements}"
        needed = 4 * num_elements * (2 * num_rows + 10)
        if self.device == "cuda" and needed > torch.cuda.mem_get_info()[0]:
            self.case(prefix, lambda: {"n": 0, "error": f"needs {needed} bytes of device memory"})
            return
        window = Window(torch, self.device, num_rows, num_elements)
        parameter = torch.nn.Parameter(torch.zeros(num_elements, device=self.device))
        optimizer = torch.optim.AdamW([parameter], lr=1e-3, weight_decay=0.01, fused=True)

        def update(gradient):
            parameter.grad = gradient
            optimizer.step()

        expected = window.sequential().double()
        norm = expected.norm().item()
        self.case(f"{prefix}.stack", lambda: self.clock.measure(window.stack, self.wanted))
        gradient = window.rows[0]
        self.case(f"{prefix}.adam_w", lambda: self.clock.measure(lambda: update(gradient), self.wanted))
        for name in (name for name in FORMS if name in forms):
            form = getattr(window, name)
            checked = self.case(f"{prefix}.{name}.error", lambda: self.compare(form, expected, norm))
            if "error" in checked:
                continue
            self.timed(f"{prefix}.{name}", form, 4 * num_elements * (2 * num_rows + 1))
            step = 4 * num_elements * (2 * num_rows + 6)
            self.timed(f"{prefix}.{name}.step", lambda: update(form()), step)

    def compare(self, form, expected, norm):
        error = (form().double() - expected).norm().item() / norm
        if not error <= TOLERANCE:
            raise RuntimeError(f"differs from the sequential form by {error:.3e} of its norm")
        return summary("relative", [error])

    def timed(self, name, work, num_bytes):
        found = self.case(name, lambda: self.clock.measure(work, self.wanted))
        if "error" not in found and self.bandwidth > 0.0:
            floor_us = num_bytes / self.bandwidth * 1e6
            self.case(f"{name}.over_floor", lambda: summary("ratio", [found["median"] / floor_us]))


def main():
    parser = argparse.ArgumentParser(description="Times combinations of gradients in PyTorch; prints one JSON object.")
    parser.add_argument("--rows", default="2,4,8,16", help="numbers of microbatches")
    parser.add_argument("--elements", default="1000000,10000000,100000000", help="numbers of parameters")
    parser.add_argument("--forms", default=",".join(FORMS))
    parser.add_argument("--n", type=int, default=200, help="repetitions at most")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    arguments = parser.parse_args()
    forms = arguments.forms.split(",")
    for name in forms:
        if name not in FORMS:
            parser.error(f"no form is named {name!r}: expected one of {', '.join(FORMS)}")
    wanted = min(max(arguments.n, 1), MAX_REPETITIONS)

    report = Report()
    started = time.monotonic()
    report.watch()
    import torch

    device = arguments.device
    if device == "cuda" and not torch.cuda.is_available():
        sys.exit("no CUDA device is available to PyTorch")
    torch.set_float32_matmul_precision("highest")
    report.environment = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "gpu": torch.cuda.get_device_name() if device == "cuda" else None,
        "driver": driver_version(),
    }
    bench = Bench(torch, device, wanted, report)
    with torch.no_grad():
        bench.bandwidths()
        # Large ones last, so that the budget takes from them first.
        for num_elements in sorted(int(count) for count in arguments.elements.split(",")):
            for num_rows in sorted(int(count) for count in arguments.rows.split(",")):
                name = f"k{num_rows}.p{num_elements}"
                if time.monotonic() - started > 0.9 * BUDGET_S:
                    report.results.append({"name": name, "n": 0, "error": "RuntimeError: no time was left"})
                    continue
                try:
                    bench.window(forms, num_rows, num_elements)
                except Exception as error:
                    report.running = None
                    message = f"{type(error).__name__}: {error}".strip()[:2000]
                    report.results.append({"name": name, "n": 0, "error": message})
                    print(f"{name}: {message}", file=sys.stderr)
    report.print()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
