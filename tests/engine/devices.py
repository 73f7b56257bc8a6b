"""Pretended devices: tensors that say they are on cuda:0 or cuda:1, and refuse to meet one of another device.

Values stay on the CPU. As on real devices, an index may be on the CPU, scalars may be anywhere, `to` moves.
"""

import contextlib

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map
from transformers import Cache

DEVICE, IS_CUDA = torch.Tensor.device.__get__, torch.Tensor.is_cuda.__get__
INDEXING = (torch.Tensor.__getitem__, torch.Tensor.__setitem__)
MOVING = (torch.Tensor.to, torch.Tensor.cpu, torch.Tensor.copy_)


class Placed(torch.Tensor):
    @staticmethod
    def __new__(cls, data, spot):
        tensor = data.as_subclass(cls)
        tensor.spot = spot
        return tensor

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {})


class Pretended(TorchFunctionMode):
    """Makers of tensors know pretended devices, too."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {})


def spot_of(tensor):
    return getattr(tensor, "spot", None)


def plain(x):
    return x.as_subclass(torch.Tensor) if isinstance(x, Placed) else x


def tensors_in(x):
    return [t for t in tree_flatten(x)[0] if isinstance(t, torch.Tensor)]


def run(func, args, kwargs):
    with torch._C.DisableTorchFunction():
        if func == DEVICE:
            return torch.device("cuda", args[0].spot) if isinstance(args[0], Placed) else DEVICE(args[0])
        if func == IS_CUDA:
            return isinstance(args[0], Placed)
        target = meeting(func, args, kwargs)
        asked = []

        def real(x):
            if isinstance(x, torch.device) or (isinstance(x, str) and x == "cpu"):
                asked.append(x.index if isinstance(x, torch.device) and x.type == "cuda" else None)
                return torch.device("cpu")
            return plain(x)

        if func is torch.Tensor.to and len(tensors_in(args)) > 1:
            asked.append(spot_of(tensors_in(args)[1]))
        out = func(*tree_map(real, args), **tree_map(real, kwargs))
        if func is torch.Tensor.cpu:
            asked = [None]
        target = asked[0] if asked else target
        name = getattr(func, "__name__", "")
        if isinstance(out, torch.Size):
            return out
        if name.endswith("_") and not name.endswith("__"):  # in place
            return args[0]
        return tree_map(lambda x: Placed(x, target) if isinstance(x, torch.Tensor) and target is not None else x, out)


def meeting(func, args, kwargs):
    """Where the tensors of a call are; an error if they are not together."""
    tensors = tensors_in((args, kwargs))
    if func in INDEXING:
        home = spot_of(args[0])
        strangers = [t for t in tensors_in(args[1]) if spot_of(t) not in (None, home)]
        strangers += [t for t in tensors_in(args[2:]) if t.dim() and spot_of(t) != home]
        if strangers:
            raise RuntimeError(f"{func.__name__}: tensors on different devices")
        return home
    spots = {spot_of(t) for t in tensors if t.dim() or spot_of(t) is not None}
    if len(spots) > 1 and func not in MOVING:
        raise RuntimeError(f"{func}: tensors on different devices: {[(tuple(t.shape), spot_of(t)) for t in tensors]}")
    return next(iter(spots), None)


def place(module, spot):
    """Weights of a module on a pretended device, and whatever it is called with moved there first, as accelerate does."""
    for part in module.modules():
        for held in (part._parameters, part._buffers):
            held.update({name: Placed(value.detach(), spot) for name, value in held.items() if value is not None})


def align(module, spot):
    forward, device = module.forward, torch.device("cuda", spot)

    def moved(x):
        return x.to(device) if isinstance(x, torch.Tensor) else x

    def aligned(*args, **kwargs):
        kwargs = {name: value if isinstance(value, Cache) else tree_map(moved, value) for name, value in kwargs.items()}
        return forward(*tree_map(moved, args), **kwargs)

    module.forward = aligned


@contextlib.contextmanager
def spread(entry, text, border):
    """A model whose decoder blocks from `border` on are on cuda:1, and all else on cuda:0."""
    place(entry.model, 0)
    for number, layer in enumerate(text.layers):
        place(layer, int(number >= border))
        align(layer, int(number >= border))
    align(text.norm, 0)
    with Pretended():
        yield
