"""Times the generation of tokens in PyTorch and prints one JSON object.

The model is that of `decode-bench`: Touvron et al. 2023, arXiv 2302.13971, with keys and values that stay at one address.
Follows `report.py` in one script.
"""

import argparse
import os
import sys
import time

VOCABULARY, WIDTH, BLOCKS, HEADS, INNER, CAPACITY = 26000, 768, 12, 12, 2048, 512
BEFORE, TIMED = 64, 128
HEAD = WIDTH // HEADS


def build(torch, dtype):
    nn, functional = torch.nn, torch.nn.functional

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.before_attention, self.before_perceptron = nn.RMSNorm(WIDTH, 1e-5), nn.RMSNorm(WIDTH, 1e-5)
            self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
            self.out = nn.Linear(WIDTH, WIDTH, bias=False)
            self.gate, self.up = (nn.Linear(WIDTH, INNER, bias=False) for _ in range(2))
            self.down = nn.Linear(INNER, WIDTH, bias=False)
            for name in ("keys", "values"):
                self.register_buffer(name, torch.zeros(1, HEADS, CAPACITY, HEAD))

        def forward(self, x, position, cos, sin, mask):
            q, k, v = self.qkv(self.before_attention(x)).view(1, 1, 3, HEADS, HEAD).permute(2, 0, 3, 1, 4)
            q, k = rotated(q, cos, sin), rotated(k, cos, sin)
            self.keys.index_copy_(2, position, k)
            self.values.index_copy_(2, position, v)
            seen = functional.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=mask)
            x = x + self.out(seen.transpose(1, 2).reshape(1, 1, WIDTH))
            normal = self.before_perceptron(x)
            return x + self.down(functional.silu(self.gate(normal)) * self.up(normal))

    def rotated(x, cos, sin):
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)

    class Llama(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(VOCABULARY, WIDTH)
            self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
            self.norm = nn.RMSNorm(WIDTH, 1e-5)
            self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
            angles = torch.outer(torch.arange(CAPACITY), 10000.0 ** (-torch.arange(HEAD // 2) / (HEAD // 2)))
            self.register_buffer("cos", angles.cos())
            self.register_buffer("sin", angles.sin())
            self.register_buffer("places", torch.arange(CAPACITY))

        def forward(self, token, position):
            x = self.table(token).unsqueeze(0)
            cos, sin = self.cos[position], self.sin[position]
            mask = self.places[None, :] <= position[:, None]
            for block in self.blocks:
                x = block(x, position, cos, sin, mask)
            return self.head(self.norm(x)).float().argmax(-1).view(1)

    torch.manual_seed(0)
    return Llama().to("cuda", dtype).eval()


def stretches(torch, step, count):
    """Microseconds per token of each stretch."""
    times = []
    for turn in range(count + 2):
        token, position = torch.ones(1, dtype=torch.long, device="cuda"), torch.zeros(1, dtype=torch.long, device="cuda")
        for index in range(BEFORE + TIMED):
            if index == BEFORE:
                torch.cuda.synchronize()
                started = time.perf_counter()
            token = step(token, position).clone()
            position += 1
        torch.cuda.synchronize()
        if turn >= 2:
            times.append((time.perf_counter() - started) * 1e6 / TIMED)
    return sorted(times)


def main():
    parser = argparse.ArgumentParser(description="Times the generation of tokens in PyTorch; prints one JSON object.")
    parser.add_argument("--precisions", default="f32,bf16")
    parser.add_argument("--n", type=int, default=12, help="stretches that are timed")
    arguments = parser.parse_args()
    report = Report()
    report.watch()
    import torch

    if not torch.cuda.is_available():
        sys.exit("no CUDA device is available to PyTorch")
    torch.set_float32_matmul_precision("highest")
    report.environment = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "gpu": torch.cuda.get_device_name(),
        "driver": driver_version(),
    }
    types = {"f32": torch.float32, "bf16": torch.bfloat16}
    with torch.no_grad():
        for precision in arguments.precisions.split(","):
            if precision not in types:
                parser.error(f"no precision is named {precision!r}: expected one of {', '.join(types)}")
            model = build(torch, types[precision])
            compiled = torch.compile(model, mode="reduce-overhead", fullgraph=True)
            for form, step in (("eager", model), ("compile", compiled)):
                name = f"{precision}.{form}"
                report.running = {"name": name}
                try:
                    times = stretches(torch, step, max(arguments.n, 1))
                    middle, late = percentile(times, 50), percentile(times, 95)
                    row = {"unit": "us", "n": len(times), "min": times[0], "median": middle, "p95": late, "max": times[-1]}
                except Exception as error:
                    row = {"n": 0, "error": f"{type(error).__name__}: {error}".strip()[:2000]}
                report.running = None
                report.results.append({"name": name, **row})
    report.print()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
