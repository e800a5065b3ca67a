"""Trains one of the shared works in PyTorch from given weights on given sequences, and prints the loss of each step.

Between `report.py` and `peer.py` in one script: `--losses FOLDER` of `peer.py`, whose networks it builds, starts it. The folder has
`description.json` and files of numbers of four bytes, lowest byte first: `weights`, `inputs`, `targets` and `order.N`.
"""


def numbers(torch, folder, name, kind):
    with open(os.path.join(folder, name), "rb") as file:
        return torch.frombuffer(bytearray(file.read()), dtype=kind)


def module_name(name):
    """The name here of a parameter there."""
    for there, here in ((".scale", ".weight"), (".shift", ".bias"), (".qkv.", ".query_key_value.")):
        name = name.replace(there, here)
    return "tokens.weight" if name == "tokens" else name


def with_weights(torch, folder, description):
    """The network, each of its parameters as the folder has it."""
    module = build_module(torch, description["work"], True)
    values, parameters, at = numbers(torch, folder, "weights", torch.float32), dict(module.named_parameters()), 0
    for name, shape in description["parameters"]:
        parameter = parameters.pop(module_name(name))
        if list(parameter.shape) != shape:
            raise RuntimeError(f"{name}: {shape} there, {list(parameter.shape)} here")
        with torch.no_grad():
            parameter.copy_(values[at : at + parameter.numel()].view(shape))
        at += parameter.numel()
    if parameters or at != values.numel():
        raise RuntimeError(f"without values: {', '.join(parameters)}; {values.numel() - at} values are left")
    return module


def losses(torch, folder, description, order):
    """The loss of each step, of the batch that it learns from."""
    device, batch, length = description["device"], description["batch"], description["length"]
    torch.set_float32_matmul_precision("highest")
    module = with_weights(torch, folder, description).to(device)
    optimizer = torch.optim.AdamW(
        module.parameters(), lr=description["rate"], betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01
    )
    inputs, targets = (numbers(torch, folder, name, torch.int32).long() for name in ("inputs", "targets"))
    places = numbers(torch, folder, f"order.{order}", torch.int32).long()
    inputs, targets = (part.view(-1, length)[places].to(device) for part in (inputs, targets))
    found = []
    for step in range(description["steps"]):
        rows = slice(step * batch, (step + 1) * batch)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=description["is_autocast"]):
            logits = module(inputs[rows])
        loss = torch.nn.functional.cross_entropy(logits.float(), targets[rows].flatten())
        loss.backward()
        optimizer.step()
        found.append(loss.detach())
    return torch.stack(found).tolist()


def loss_curves(torch, report, folder):
    with open(os.path.join(folder, "description.json")) as file:
        description = json.load(file)
    description["device"] = "cuda" if torch.cuda.is_available() else "cpu"
    report.environment = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "driver": driver_version(),
    }
    for order in description["orders"]:
        report.running = {"order": order}
        report.results.append({"order": order, "losses": losses(torch, folder, description, order)})
    report.running = None
    report.print()
