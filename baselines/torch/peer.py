"""Times the shared works in PyTorch and in JAX and prints one JSON object.

A repetition of `ref` is an epoch of 4 optimizer steps, of the other works one step. Each step copies its batch, which is
on the device already, into static inputs. All modes run the same arithmetic; `compile` compiles forward pass, loss and
backward pass, `graph` replays the whole step as one CUDA graph, and `compile_graph` is the graph of what was compiled; `jit` is the whole
step in JAX.

Precisions: `f32`; `tf32`, products in TF32; `autocast`, parameters in `f32` and forward pass under autocast to `bf16`;
`bf16`, parameters, moments and activations in `bf16`. The loss is taken of logits in `f32`.

Follows `report.py` and `jit.py` in one script.
"""

import argparse
import math
import os
import sys
import time
from importlib.metadata import PackageNotFoundError, version

# Of one case and one kind of timing.
CASE_S = 4.0
MIN_REPETITIONS = 200
MAX_REPETITIONS = 1000
WARM_UP = 20
ADAM_W = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
WORKS = ("ref", "mlp", "tfm5m", "tfm30m", "mlp4096", "gpt2")
# The slow ones last, so that the budget takes from them first.
MODES = ("eager", "graph", "jit", "compile", "compile_graph")
COMPILED_MODES = ("compile", "compile_graph")
GRAPH_MODES = ("graph", "compile_graph")
PRECISIONS = ("f32", "tf32", "autocast", "bf16")
# Blocks, width, heads, vocabulary, context.
TRANSFORMERS = {
    "tfm5m": (6, 256, 4, 256, 64),
    "tfm30m": (10, 512, 8, 256, 128),
    "gpt2": (12, 768, 12, 50304, 1024),
}
# The output multiplies with the table of tokens.
TIED = ("gpt2",)
# Batch, features, classes, samples.
TABLES = {"ref": (4, 4, 4, 16), "mlp": (128, 784, 10, 1024), "mlp4096": (512, 1024, 1000, 4096)}


def build_module(torch, work, joint):
    """The network of a name; `joint` makes query, key and value one product."""
    nn, functional = torch.nn, torch.nn.functional

    class Block(nn.Module):
        def __init__(self, width, heads):
            super().__init__()
            self.heads = heads
            self.attention_norm = nn.LayerNorm(width)
            self.perceptron_norm = nn.LayerNorm(width)
            if joint:
                self.query_key_value = nn.Linear(width, 3 * width)
            else:
                self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
            self.projection = nn.Linear(width, width)
            self.expand = nn.Linear(width, 4 * width)
            self.contract = nn.Linear(4 * width, width)

        def forward(self, x):
            batch, length, width = x.shape

            def split(y):
                return y.view(batch, length, self.heads, width // self.heads).transpose(1, 2)

            y = self.attention_norm(x)
            parts = self.query_key_value(y).chunk(3, -1) if joint else (self.query(y), self.key(y), self.value(y))
            query, key, value = map(split, parts)
            mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            x = x + self.projection(mixed.transpose(1, 2).reshape(batch, length, width))
            return x + self.contract(functional.gelu(self.expand(self.perceptron_norm(x))))

    class Transformer(nn.Module):
        def __init__(self, blocks, width, heads, vocabulary, context):
            super().__init__()
            self.tokens = nn.Embedding(vocabulary, width)
            self.positions = nn.Parameter(torch.empty(context, width))
            self.blocks = nn.ModuleList(Block(width, heads) for _ in range(blocks))
            self.norm = nn.LayerNorm(width)
            self.head = nn.Linear(width, vocabulary, bias=False)
            if work in TIED:
                self.head.weight = self.tokens.weight
            nn.init.normal_(self.tokens.weight, std=0.02)
            nn.init.normal_(self.positions, std=0.02)

        def forward(self, ids):
            x = self.tokens(ids) + self.positions
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x)).flatten(0, 1)

    def perceptron(features, hidden, classes):
        return nn.Sequential(
            nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, classes)
        )

    if work in TRANSFORMERS:
        return Transformer(*TRANSFORMERS[work])
    return {
        "ref": lambda: nn.Linear(4, 4),
        "mlp": lambda: perceptron(784, 512, 10),
        "mlp4096": lambda: perceptron(1024, 4096, 1000),
    }[work]()


def build_data(torch, work):
    """Inputs (N, ...) and targets on the device, with samples per batch and targets per sample."""
    generator = torch.Generator().manual_seed(0)
    if work in TRANSFORMERS:
        count, batch = 64, 8
        *_, vocabulary, length = TRANSFORMERS[work]
        tokens = torch.randint(vocabulary, (count, 1), generator=generator)
        columns = [tokens]
        for _ in range(length):
            columns.append((5 * columns[-1] + torch.randint(4, (count, 1), generator=generator)) % vocabulary)
        stream = torch.cat(columns, dim=1)
        inputs, targets, per_sample = stream[:, :-1].contiguous(), stream[:, 1:].reshape(-1), length
    else:
        batch, features, classes, count = TABLES[work]
        inputs = torch.rand(count, features, generator=generator) * 2 - 1
        targets, per_sample = torch.arange(count) % classes, 1
    return inputs.cuda(), targets.cuda(), batch, per_sample


class Case:
    """One work in one mode; `repeat(i)` is what is timed."""

    def __init__(self, torch, work, mode, precision, arguments):
        self.torch = torch
        torch.manual_seed(0)
        torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
        self.is_autocast = precision == "autocast"
        self.module = build_module(torch, work, arguments.joint_qkv).cuda()
        inputs, targets, batch, per_sample = build_data(torch, work)
        if precision == "bf16":
            self.module.bfloat16()
            if inputs.is_floating_point():
                inputs = inputs.bfloat16()
        parameters = self.module.parameters()
        if work in ("ref", "mlp4096"):
            extra = {"fused": True} if arguments.fused else {"foreach": True}
            self.optimizer = torch.optim.SGD(parameters, lr=0.01, **extra)
        else:
            # `fused=False` would also turn off the default of one kernel for many parameters; so it is left out.
            extra = {"fused": True} if arguments.fused else {}
            self.optimizer = torch.optim.AdamW(parameters, capturable=mode in GRAPH_MODES, **ADAM_W, **extra)
        self.batches = list(zip(inputs.split(batch), targets.split(batch * per_sample)))
        self.inputs, self.targets = (part.clone() for part in self.batches[0])
        self.steps_per_repetition = 4 if work == "ref" else 1
        self.loss_of = torch.compile(self.loss) if mode in COMPILED_MODES else self.loss
        self.last_loss = None
        self.run_step = self.capture() if mode in GRAPH_MODES else self.step

    def loss(self, inputs, targets):
        # Casts are not kept from one use of a weight to the next: there is one use, and a graph must not refer to them.
        with self.torch.autocast("cuda", dtype=self.torch.bfloat16, enabled=self.is_autocast, cache_enabled=False):
            logits = self.module(inputs)
        return self.torch.nn.functional.cross_entropy(logits.float(), targets)

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        self.last_loss = self.loss_of(self.inputs, self.targets)
        self.last_loss.backward()
        self.optimizer.step()

    def capture(self):
        """The whole step as a graph, after a warm-up on a side stream."""
        cuda = self.torch.cuda
        side = cuda.Stream()
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            for _ in range(11):
                self.step()
        cuda.current_stream().wait_stream(side)
        self.optimizer.zero_grad(set_to_none=True)
        self.last_loss = None
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            self.step()
        self.graph = graph
        return graph.replay

    def repeat(self, index):
        for step in range(self.steps_per_repetition):
            inputs, targets = self.batches[(index * self.steps_per_repetition + step) % len(self.batches)]
            self.inputs.copy_(inputs)
            self.targets.copy_(targets)
            self.run_step()

    def sync(self):
        self.torch.cuda.synchronize()

    def snapshot(self):
        return [parameter.detach().clone() for parameter in self.module.parameters()]

    def moved(self, before):
        return not all(self.torch.equal(old, new) for old, new in zip(before, self.snapshot()))


def measure(torch, work, mode, precision, wanted, arguments):
    """Times one case; raises when it cannot run or does not train."""
    clock = time.perf_counter
    if mode in COMPILED_MODES:
        # What one work compiled must not count against the limits of the next one.
        torch._dynamo.reset()
    torch.cuda.synchronize()
    started = clock()
    is_jit = mode == "jit"
    case = JitCase(torch, work, precision, arguments) if is_jit else Case(torch, work, mode, precision, arguments)
    sync = case.sync
    built = clock()
    case.repeat(0)
    sync()
    # Building the network counts for graphs only, where it has the capture inside.
    first_ms = (clock() - (started if mode in GRAPH_MODES else built)) * 1e3

    before = case.snapshot()
    for index in range(1, WARM_UP + 1):
        case.repeat(index)
    sync()
    if not case.moved(before):
        raise RuntimeError("no parameter moved")
    started = clock()
    for index in range(WARM_UP):
        case.repeat(index)
        sync()
    estimate = (clock() - started) / WARM_UP
    floor = min(MIN_REPETITIONS, wanted)
    count = max(min(wanted, int(CASE_S / estimate)), floor)

    times = []
    for index in range(count):
        sync()
        started = clock()
        case.repeat(index)
        sync()
        times.append((clock() - started) * 1e6)
    sync()
    started = clock()
    for index in range(count):
        case.repeat(index)
    sync()
    throughput = (clock() - started) / count * 1e6

    loss = float(case.last_loss)
    if not math.isfinite(loss):
        raise RuntimeError(f"the loss is {loss}")
    times.sort()
    return {
        "n": count,
        "median_us": percentile(times, 50),
        "p95_us": percentile(times, 95),
        "min_us": times[0],
        "max_us": times[-1],
        "throughput_us": throughput,
        "first_ms": first_ms,
        "loss": loss,
    }


def main():
    parser = argparse.ArgumentParser(description="Times the shared works in PyTorch and prints one JSON object.")
    parser.add_argument("--works", default="ref,mlp,tfm5m")
    parser.add_argument("--modes", default="eager,compile,graph")
    parser.add_argument("--n", type=int, default=500)
    parser.add_argument("--precisions", default="f32")
    parser.add_argument("--budget", type=float, default=145.0, help="seconds, after which what there is gets printed")
    parser.add_argument("--fused", action="store_true", help="the optimizer as one fused kernel")
    parser.add_argument("--joint-qkv", action="store_true", help="query, key and value as one product")
    parser.add_argument("--losses", metavar="FOLDER", help="with `losses.py`: losses of steps from what the folder has, and nothing else")
    arguments = parser.parse_args()
    works, modes, precisions = (
        names.split(",") for names in (arguments.works, arguments.modes, arguments.precisions)
    )
    for what, names, known in (("work", works, WORKS), ("mode", modes, MODES), ("precision", precisions, PRECISIONS)):
        for name in names:
            if name not in known:
                parser.error(f"no {what} is named {name!r}: expected one of {', '.join(known)}")
    wanted = min(max(arguments.n, 1), MAX_REPETITIONS)

    report = Report(arguments.budget)
    started = time.monotonic()
    report.watch()

    # Compilation within this process: a worker that outlives it would hold the output open for whoever reads it.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    import torch

    if arguments.losses:
        return loss_curves(torch, report, arguments.losses)
    if not torch.cuda.is_available():
        sys.exit("no CUDA device is available to PyTorch")
    report.environment = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "gpu": torch.cuda.get_device_name(),
        "driver": driver_version(),
        "fused": arguments.fused,
        "joint_qkv": arguments.joint_qkv,
    }
    if "jit" in modes:
        try:
            report.environment["jax"] = version("jax")
        except PackageNotFoundError:
            parser.error("JAX is not installed, which mode 'jit' needs")
    cases = (
        (work, mode, precision)
        for mode in MODES
        for work in WORKS
        for precision in PRECISIONS
        # The smallest network has no products to speak of.
        if mode in modes and work in works and precision in precisions and (work != "ref" or precision == "f32")
    )
    for work, mode, precision in cases:
        report.running = {"work": work, "mode": mode, "precision": precision}
        try:
            if time.monotonic() - started > 0.9 * arguments.budget:
                raise RuntimeError("no time was left")
            result = measure(torch, work, mode, precision, wanted, arguments)
        except Exception as error:
            # The type too: messages of some assertions are empty.
            lines = f"{type(error).__name__}: {error}".strip()
            result = {"n": 0, "error": lines[:2000]}
            print(f"{work} {mode} {precision}: {lines}", file=sys.stderr)
        case, report.running = report.running, None
        report.results.append(dict(case, **result))
    report.print()
    # Not the ordinary end: workers of the compiler may keep the interpreter waiting.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
