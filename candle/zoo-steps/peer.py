"""Ten models of the zoo in PyTorch, in the same small configurations; prints one JSON object.

    python3 candle/zoo-steps/peer.py > peer.json        then `candle-zoo-steps ... --peer peer.json`

Forward and backward pass are Inductor's kernels; the whole step, with clipping and the fused AdamW, is one CUDA graph, and so is the
forward pass. A repetition copies its batch, which is on the device already, into static inputs. All models are compiled side by
side; then one after the other is timed.
"""

import json
import math
import multiprocessing
import os
import sys
import threading
import time

BUDGET_S = 240.0
WARM_UP, TIMED, GROUPS, IN_GROUP = 11, 200, 25, 8
VOCABULARY, WIDTH, INNER, LENGTH, HEAD = 24, 16, 24, 6, 4
# Samples of a batch.
DECODERS = {"llama": 2, "mistral": 1, "qwen2": 1, "gemma": 1, "phi": 1}
NAMES = [*DECODERS, "bert", "t5_encoder", "vit", "resnet18", "convnext"]


def build(torch, name):
    """The network, and its inputs for `count` samples; outputs are (samples, classes)."""
    nn, functional = torch.nn, torch.nn.functional

    def linear(inputs, outputs, bias):
        return nn.Linear(inputs, outputs, bias=bias)

    class Scale(nn.Module):
        """RMS norm; of Gemma's weights 1 is the beginning."""

        def __init__(self, width, offset=0.0, eps=1e-5):
            super().__init__()
            self.weight, self.offset, self.eps = nn.Parameter(torch.ones(width) - offset), offset, eps

        def forward(self, x):
            return functional.rms_norm(x, x.shape[-1:], self.weight + self.offset if self.offset else self.weight, self.eps)

    class Attention(nn.Module):
        def __init__(self, width, heads, head, kv_heads=None, bias=False, out_bias=False, rotary=0, causal=False, scale=None):
            super().__init__()
            self.heads, self.head, self.kv_heads = heads, head, kv_heads or heads
            self.causal, self.rotary, self.scale = causal, rotary, scale
            self.q = linear(width, heads * head, bias)
            self.k, self.v = (linear(width, self.kv_heads * head, bias) for _ in range(2))
            self.out = linear(heads * head, width, out_bias)
            if rotary:
                angles = torch.outer(torch.arange(64), 10000.0 ** (-torch.arange(rotary // 2) / (rotary // 2)))
                self.register_buffer("cos", angles.cos())
                self.register_buffer("sin", angles.sin())

        def turned(self, x):
            cos, sin = self.cos[: x.shape[2]], self.sin[: x.shape[2]]
            first, second = x[..., : self.rotary].chunk(2, -1)
            parts = (first * cos - second * sin, second * cos + first * sin, x[..., self.rotary :])
            return torch.cat(parts, -1)

        def forward(self, x, bias=None):
            batch, length, _ = x.shape
            split = lambda y, heads: y.view(batch, length, heads, self.head).transpose(1, 2)
            q, k, v = split(self.q(x), self.heads), split(self.k(x), self.kv_heads), split(self.v(x), self.kv_heads)
            if self.rotary:
                q, k = self.turned(q), self.turned(k)
            seen = functional.scaled_dot_product_attention(
                q, k, v, attn_mask=bias, is_causal=self.causal, scale=self.scale, enable_gqa=self.kv_heads != self.heads
            )
            return self.out(seen.transpose(1, 2).reshape(batch, length, self.heads * self.head))

    class Gated(nn.Module):
        def __init__(self, act):
            super().__init__()
            self.gate, self.up, self.down = linear(WIDTH, INNER, False), linear(WIDTH, INNER, False), linear(INNER, WIDTH, False)
            self.act = act

        def forward(self, x):
            return self.down(self.act(self.gate(x)) * self.up(x))

    class Plain(nn.Module):
        def __init__(self, act):
            super().__init__()
            self.up, self.down, self.act = linear(WIDTH, INNER, True), linear(INNER, WIDTH, True), act

        def forward(self, x):
            return self.down(self.act(self.up(x)))

    gelu_tanh = lambda x: functional.gelu(x, approximate="tanh")

    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            is_gemma, is_phi = name == "gemma", name == "phi"
            norm = (lambda: nn.LayerNorm(WIDTH)) if is_phi else (lambda: Scale(WIDTH, 1.0 if is_gemma else 0.0))
            act = gelu_tanh if is_gemma or is_phi else functional.silu

            def block():
                parts = {"norm": norm(), "mlp": Plain(act) if is_phi else Gated(act)}
                parts["attention"] = Attention(
                    WIDTH, 4, HEAD, 1 if is_gemma else 2, name in ("qwen2", "phi"), is_phi, 2 if is_phi else HEAD, True
                )
                if not is_phi:
                    parts["second"] = norm()
                return nn.ModuleDict(parts)

            self.table = nn.Embedding(VOCABULARY, WIDTH)
            self.blocks = nn.ModuleList(block() for _ in range(2))
            self.norm = norm()
            # Gemma's head is its table.
            self.head = None if is_gemma else linear(WIDTH, VOCABULARY, is_phi)

        def forward(self, ids):
            x = self.table(ids)
            if self.head is None:
                x = x * math.sqrt(WIDTH)
            for block in self.blocks:
                normal = block["norm"](x)
                if "second" in block:
                    x = x + block["attention"](normal)
                    x = x + block["mlp"](block["second"](x))
                else:
                    x = x + block["attention"](normal) + block["mlp"](normal)
            x = self.norm(x[:, -1])
            return x @ self.table.weight.t() if self.head is None else self.head(x)

    class Bert(nn.Module):
        def __init__(self):
            super().__init__()
            sizes = {"words": VOCABULARY, "places": 32, "kinds": 2}
            self.tables = nn.ModuleDict({key: nn.Embedding(size, WIDTH) for key, size in sizes.items()})
            self.norm = nn.LayerNorm(WIDTH)

            def block():
                attention = Attention(WIDTH, 2, WIDTH // 2, bias=True, out_bias=True)
                norms = [nn.LayerNorm(WIDTH) for _ in range(2)]
                return nn.ModuleList([attention, norms[0], Plain(functional.gelu), norms[1]])

            self.blocks = nn.ModuleList(block() for _ in range(2))
            self.register_buffer("places", torch.arange(LENGTH))

        def forward(self, ids):
            x = self.tables["words"](ids) + self.tables["kinds"](torch.zeros_like(ids)) + self.tables["places"](self.places)
            x = self.norm(x)
            for attention, first, mlp, second in self.blocks:
                x = first(x + attention(x))
                x = second(x + mlp(x))
            return x.flatten(1)

    class T5Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(VOCABULARY, WIDTH)
            self.bias = nn.Embedding(8, 2)
            block = lambda: nn.ModuleList(
                [Scale(WIDTH, eps=1e-6), Attention(WIDTH, 2, 8, scale=1.0), Scale(WIDTH, eps=1e-6), Gated(gelu_tanh)]
            )
            self.blocks = nn.ModuleList(block() for _ in range(2))
            self.norm = Scale(WIDTH, eps=1e-6)
            distance = torch.arange(LENGTH)[None, :] - torch.arange(LENGTH)[:, None]
            # Four buckets for each direction, of which the last ones are logarithmic.
            bucket = torch.where(distance.abs() < 2, distance.abs(), (2 + (distance.abs() >= 4).long()))
            self.register_buffer("buckets", bucket + 4 * (distance > 0).long())

        def forward(self, ids):
            x = self.table(ids)
            bias = self.bias(self.buckets).permute(2, 0, 1).unsqueeze(0)
            for first, attention, second, mlp in self.blocks:
                x = x + attention(first(x), bias)
                x = x + mlp(second(x))
            return self.norm(x).flatten(1)

    class Vit(nn.Module):
        def __init__(self):
            super().__init__()
            self.patches = nn.Conv2d(3, WIDTH, 8, 8)
            self.first, self.places = nn.Parameter(torch.randn(1, 1, WIDTH)), nn.Parameter(torch.randn(1, 5, WIDTH))

            def block():
                attention = Attention(WIDTH, 2, WIDTH // 2, bias=True, out_bias=True)
                return nn.ModuleList([nn.LayerNorm(WIDTH), attention, nn.LayerNorm(WIDTH), Plain(functional.gelu)])

            self.blocks = nn.ModuleList(block() for _ in range(2))
            self.norm, self.head = nn.LayerNorm(WIDTH), linear(WIDTH, 5, True)

        def forward(self, x):
            x = self.patches(x).flatten(2).transpose(1, 2)
            x = torch.cat((self.first.expand(x.shape[0], -1, -1), x), 1) + self.places
            for first, attention, second, mlp in self.blocks:
                x = x + attention(first(x))
                x = x + mlp(second(x))
            return self.head(self.norm(x)[:, 0])

    class Residual(nn.Module):
        def __init__(self, inputs, outputs, stride):
            super().__init__()
            conv = lambda i, o, size, step: nn.Sequential(
                nn.Conv2d(i, o, size, step, size // 2, bias=False), nn.BatchNorm2d(o)
            )
            self.first, self.second = conv(inputs, outputs, 3, stride), conv(outputs, outputs, 3, 1)
            self.short = conv(inputs, outputs, 1, stride) if stride != 1 or inputs != outputs else nn.Identity()

        def forward(self, x):
            return functional.relu(self.short(x) + self.second(functional.relu(self.first(x))))

    def resnet18():
        stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
        widths = [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]
        blocks = [Residual(*sizes) for i, o, step in widths for sizes in ((i, o, step), (o, o, 1))]
        return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), linear(512, 5, True))

    class ChannelNorm(nn.LayerNorm):
        def forward(self, x):
            return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    class NextBlock(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.depthwise, self.norm = nn.Conv2d(width, width, 7, padding=3, groups=width), ChannelNorm(width, eps=1e-6)
            self.up, self.down = nn.Conv2d(width, 4 * width, 1), nn.Conv2d(4 * width, width, 1)
            self.scale = nn.Parameter(torch.full((width, 1, 1), 0.1))

        def forward(self, x):
            return x + self.scale * self.down(functional.gelu(self.up(self.norm(self.depthwise(x)))))

    def convnext():
        widths, layers = (40, 80, 160, 320), [nn.Conv2d(3, 40, 4, 4), ChannelNorm(40, eps=1e-6)]
        for index, (width, depth) in enumerate(zip(widths, (2, 2, 6, 2))):
            if index:
                layers += [ChannelNorm(widths[index - 1], eps=1e-6), nn.Conv2d(widths[index - 1], width, 2, 2)]
            layers += [NextBlock(width) for _ in range(depth)]
        head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(320, eps=1e-6), linear(320, 5, True)]
        return nn.Sequential(*layers, *head)

    images = {"vit": 16, "resnet18": 32, "convnext": 32}
    others = {"bert": Bert, "t5_encoder": T5Encoder, "vit": Vit, "resnet18": resnet18, "convnext": convnext}
    network = others.get(name, Decoder)()
    batch = DECODERS.get(name, 2)
    if name in images:
        inputs = torch.rand(8 * batch, 3, images[name], images[name]) * 2 - 1
    else:
        inputs = torch.randint(1, VOCABULARY, (8 * batch, LENGTH))
    # Batch norm by its running statistics, as in candle.
    return network.eval().cuda(), inputs.cuda().split(batch)


def captured(torch, step):
    """`step` as one graph, after a warm-up on a side stream."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


def times(torch, repeat):
    """Microseconds of a repetition that is waited for, and of one of eight."""
    waited, pipelined = [], []
    for index in range(TIMED + 20):
        torch.cuda.synchronize()
        started = time.perf_counter()
        repeat(index)
        torch.cuda.synchronize()
        waited.append((time.perf_counter() - started) * 1e6)
    for _ in range(GROUPS):
        started = time.perf_counter()
        for index in range(IN_GROUP):
            repeat(index)
        torch.cuda.synchronize()
        pipelined.append((time.perf_counter() - started) * 1e6 / IN_GROUP)
    return waited[20:], pipelined


def measurement(values):
    values = sorted(values)
    rank = lambda percent: values[max(math.ceil(len(values) * percent / 100), 1) - 1]
    return {"unit": "us", "n": len(values), "min": values[0], "median": rank(50), "p95": rank(95), "max": values[-1]}


def measure(name, barrier, lock, results):
    measurements, config, ready = {}, {}, None
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    try:
        import torch

        torch.manual_seed(0)
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = False
        network, batches = build(torch, name)
        inputs = batches[0].clone()
        parameters = list(network.parameters())
        optimizer = torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.0, fused=True, capturable=True)
        classes = network(inputs).shape[1]
        targets = [(torch.arange(len(inputs), device="cuda") * 7 + index) % classes for index in range(len(batches))]
        target = targets[0].clone()
        loss_of = torch.compile(lambda: torch.nn.functional.cross_entropy(network(inputs), target))
        forward_of = torch.compile(network)

        def step():
            optimizer.zero_grad(set_to_none=True)
            loss_of().backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()

        def forward():
            with torch.no_grad():
                forward_of(inputs)

        before = [parameter.detach().clone() for parameter in parameters]
        ready = {"step": captured(torch, step), "forward": captured(torch, forward)}

        def repeated(kind):
            def repeat(index):
                inputs.copy_(batches[index % len(batches)])
                if kind == "step":
                    target.copy_(targets[index % len(batches)])
                ready[kind].replay()

            return repeat

        config[f"torch.{name}"] = f"torch {torch.__version__}, {sum(p.numel() for p in parameters)} parameters"
    except Exception as error:
        config[f"torch.{name}.error"] = f"{type(error).__name__}: {error}"[:600]
    try:
        barrier.wait(BUDGET_S)
    except threading.BrokenBarrierError:
        pass
    with lock:
        try:
            for kind in ready or ():
                waited, pipelined = times(torch, repeated(kind))
                measurements[f"torch.{name}.{kind}"] = measurement(waited)
                measurements[f"torch.{name}.{kind}.pipelined"] = measurement(pipelined)
            if ready and all(torch.equal(old, new) for old, new in zip(before, parameters)):
                raise RuntimeError("no parameter moved")
        except Exception as error:
            config[f"torch.{name}.error"] = f"{type(error).__name__}: {error}"[:600]
    results.put((measurements, config))


def main():
    names = sys.argv[1].split(",") if len(sys.argv) > 1 else NAMES
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        sys.exit(f"no model is named {unknown[0]!r}: expected of {', '.join(NAMES)}")
    context = multiprocessing.get_context("spawn")
    barrier, lock, results = context.Barrier(len(names)), context.Lock(), context.Queue()
    # Standard output is for the result alone.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    workers = [context.Process(target=measure, args=(name, barrier, lock, results), daemon=True) for name in names]
    for worker in workers:
        worker.start()
    measurements, config, end = {}, {}, time.monotonic() + BUDGET_S + 30
    for _ in workers:
        try:
            some, said = results.get(timeout=max(end - time.monotonic(), 0.1))
        except Exception:
            config["torch.error"] = f"not all models were done within {BUDGET_S + 30:.0f} s"
            break
        measurements.update(some)
        config.update(said)
    json.dump({"measurements": measurements, "config": config}, out)
    out.write("\n")
    out.flush()
    # Not the ordinary end: workers of the compiler may keep the interpreter waiting.
    for worker in workers:
        worker.kill()
    os._exit(0)


if __name__ == "__main__":
    main()
