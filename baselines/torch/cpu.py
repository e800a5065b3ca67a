"""Steps of the perceptron of `bench reference` in PyTorch on the CPU, eager and compiled."""

import argparse
import sys
import time

BATCH, NUM_SAMPLES, WARM_UP = 128, 1024, 16


def steps(torch, is_compiled, wanted):
    """Times in ms of steps that begin with the indices of their samples and end with updated parameters."""
    torch.manual_seed(0)
    functional = torch.nn.functional
    layers = [torch.nn.Linear(784, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(512, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    inputs, targets = torch.randn(NUM_SAMPLES, 784), torch.randint(0, 10, (NUM_SAMPLES,))

    def loss_of(inputs, targets):
        return functional.cross_entropy(model(inputs), targets)

    loss_of = torch.compile(loss_of, fullgraph=True) if is_compiled else loss_of
    times, order = [], []
    while len(times) < WARM_UP + wanted:
        order = order or list(torch.randperm(NUM_SAMPLES).split(BATCH))
        indices = order.pop()
        began = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss_of(inputs[indices], targets[indices]).backward()
        optimizer.step()
        times.append((time.perf_counter() - began) * 1e3)
    return times[WARM_UP:]


def main():
    parser = argparse.ArgumentParser(description="Times steps of PyTorch on the CPU; prints one JSON object.")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--n", type=int, default=160, help="steps that are timed")
    arguments = parser.parse_args()
    report = Report()
    report.watch()
    # Compilation within this process: a worker that outlives it would hold the output open for whoever reads it.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    import torch

    torch.set_num_threads(arguments.threads)
    report.environment = {"torch": torch.__version__, "cuda": torch.version.cuda, "gpu": None, "driver": None}
    for mode in ("eager", "compile"):
        report.running = {"name": f"mlp.{mode}"}
        try:
            times = sorted(steps(torch, mode == "compile", arguments.n))
            found = {"median": percentile(times, 50), "p95": percentile(times, 95)}
            result = {"n": len(times), "unit": "ms", "min": times[0], "max": times[-1], **found}
        except Exception as error:
            result = {"n": 0, "error": f"{type(error).__name__}: {error}".strip()[:2000]}
        case, report.running = report.running, None
        report.results.append(dict(case, **result))
    report.print()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
