"""The shared works in JAX: a whole step under `jit`, its buffers donated, with the parameters that PyTorch draws.

Part of `peer.py`, whose last mode it is.
"""


class JitCase:
    """One work; like `Case`, without inputs to copy into: a step reads its batch where it lies."""

    def __init__(self, torch, work, precision, arguments):
        # All of the memory would be taken at once.
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        import jax
        import jax.numpy as jnp

        self.jax, self.work, self.precision = jax, work, precision
        products = {"f32": "highest", "tf32": "tensorfloat32"}.get(precision, "default")
        jax.config.update("jax_default_matmul_precision", products)
        torch.manual_seed(0)
        self.is_half = precision in ("autocast", "bf16")
        of_parameters = jnp.bfloat16 if precision == "bf16" else jnp.float32
        named = build_module(torch, work, arguments.joint_qkv).named_parameters()
        parameters = {name: jnp.asarray(value.detach().numpy(), of_parameters) for name, value in named}
        inputs, targets, batch, per_sample = build_data(torch, work)
        inputs, targets = (jnp.asarray(part.cpu().numpy()) for part in (inputs, targets))
        if precision == "bf16" and work not in TRANSFORMERS:
            inputs = inputs.astype(of_parameters)
        count = len(inputs) // batch
        self.batches = list(zip(jnp.split(inputs, count), jnp.split(targets, count)))
        self.is_adam = work not in ("ref", "mlp4096")
        zeros = {name: jnp.zeros_like(value) for name, value in parameters.items()}
        moments = (zeros, {name: jnp.copy(value) for name, value in zeros.items()}) if self.is_adam else ()
        self.state = (parameters, moments, jnp.zeros((), jnp.float32))
        self.steps_per_repetition = 4 if work == "ref" else 1
        self.run_step = jax.jit(self.step, donate_argnums=0)
        self.last_loss = None

    def linear(self, p, name, x):
        weight, bias = p[name + "weight"], p.get(name + "bias")
        if self.is_half:
            half = self.jax.numpy.bfloat16
            x, weight, bias = x.astype(half), weight.astype(half), None if bias is None else bias.astype(half)
        y = x @ weight.T
        return y if bias is None else y + bias

    def norm(self, p, name, x):
        jnp = self.jax.numpy
        wide = x.astype(jnp.float32)
        centred = wide - wide.mean(-1, keepdims=True)
        y = centred * self.jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        y = y * p[name + "weight"] + p[name + "bias"]
        return y.astype(x.dtype)

    def forward(self, p, x):
        nn, jnp = self.jax.nn, self.jax.numpy
        if self.work not in TRANSFORMERS:
            layers = sorted({name.removesuffix("weight").removesuffix("bias") for name in p})
            for index, layer in enumerate(layers):
                x = self.linear(p, layer, x)
                x = nn.relu(x) if index + 1 < len(layers) else x
            return x
        blocks, _, heads, _, _ = TRANSFORMERS[self.work]
        x = p["tokens.weight"][x] + p["positions"]
        for block in (f"blocks.{index}." for index in range(blocks)):
            y = self.norm(p, block + "attention_norm.", x)
            if block + "query.weight" in p:
                parts = [self.linear(p, f"{block}{name}.", y) for name in ("query", "key", "value")]
            else:
                parts = jnp.split(self.linear(p, block + "query_key_value.", y), 3, -1)
            query, key, value = (part.reshape(*part.shape[:2], heads, -1) for part in parts)
            with_ = "cudnn" if self.is_half else "xla"
            mixed = nn.dot_product_attention(query, key, value, is_causal=True, implementation=with_)
            x = x + self.linear(p, block + "projection.", mixed.reshape(y.shape))
            y = self.linear(p, block + "expand.", self.norm(p, block + "perceptron_norm.", x))
            x = x + self.linear(p, block + "contract.", nn.gelu(y, approximate=False))
        x = self.linear(p, "head." if "head.weight" in p else "tokens.", self.norm(p, "norm.", x))
        return x.reshape(-1, x.shape[-1])

    def loss(self, p, inputs, targets):
        jnp = self.jax.numpy
        rows = self.jax.nn.log_softmax(self.forward(p, inputs).astype(jnp.float32))
        return -jnp.take_along_axis(rows, targets[:, None], 1).mean()

    def step(self, state, inputs, targets):
        jax, jnp = self.jax, self.jax.numpy
        parameters, moments, count = state
        loss, gradients = jax.value_and_grad(self.loss)(parameters, inputs, targets)
        if not self.is_adam:
            return (jax.tree.map(lambda p, g: p - 0.01 * g, parameters, gradients), (), count), loss
        count = count + 1
        (beta1, beta2), rate = ADAM_W["betas"], ADAM_W["lr"]
        first = jax.tree.map(lambda m, g: beta1 * m + (1 - beta1) * g, moments[0], gradients)
        second = jax.tree.map(lambda v, g: beta2 * v + (1 - beta2) * g * g, moments[1], gradients)

        def updated(p, m, v):
            size = jnp.sqrt(v) / jnp.sqrt(1 - beta2**count) + ADAM_W["eps"]
            return (p * (1 - rate * ADAM_W["weight_decay"]) - rate / (1 - beta1**count) * m / size).astype(p.dtype)

        return (jax.tree.map(updated, parameters, first, second), (first, second), count), loss

    def repeat(self, index):
        for step in range(self.steps_per_repetition):
            inputs, targets = self.batches[(index * self.steps_per_repetition + step) % len(self.batches)]
            self.state, self.last_loss = self.run_step(self.state, inputs, targets)

    def sync(self):
        self.jax.block_until_ready((self.state, self.last_loss))

    def snapshot(self):
        # What `jit` returns has its names in another order.
        return [self.jax.device_get(self.state[0][name]) for name in sorted(self.state[0])]

    def moved(self, before):
        return any((old != new).any() for old, new in zip(before, self.snapshot()))
