"""Dense weights and optimizer state as safetensors, without pickle."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor


def pack_tensors(tensors: Mapping[str, Tensor]) -> bytes:
    """Return the safetensors bytes of named tensors; tensors that share memory are written separately."""
    return save(tensors_on_host(tensors))


def unpack_tensors(data: bytes) -> dict[str, Tensor]:
    """Return the named tensors of safetensors bytes."""
    return load(data)


def pack_optimizer(state: Mapping[str, Any]) -> bytes:
    """Return the bytes of a `torch.optim` state_dict: tensors as safetensors, the rest as JSON metadata."""
    tensors, metadata = flat_optimizer(state)
    return save(tensors_on_host(tensors), metadata=metadata)


def flat_optimizer(state: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the tensors (loaded or not) of a state_dict by `<number>.<key>`, and their file's metadata."""
    tensors, plain = dict[str, Any](), dict[str, Any]()
    for index, entry in state.get("state", {}).items():
        for key, value in entry.items():
            (tensors if hasattr(value, "shape") else plain)[f"{index}.{key}"] = value
    metadata = {"plain": plain, "param_groups": state.get("param_groups")}
    return tensors, {"optimizer": json.dumps(metadata)}


def tensors_on_host(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors in host memory, without shared memory, which safetensors rejects."""
    copies: dict[str, Tensor] = {}
    taken: set[int] = set()
    for name, tensor in tensors.items():
        plain = tensor.detach().cpu().contiguous()
        memory = plain.untyped_storage().data_ptr()
        copies[name] = plain.clone() if memory in taken else plain
        taken.add(memory)
    return copies


def unpack_optimizer(data: bytes) -> dict[str, Any]:
    """Return the state_dict that `pack_optimizer` packed; empty if there was none."""
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return whole_optimizer(unpack_tensors(data), [header["__metadata__"]])


def whole_optimizer(tensors: Mapping[str, Any], files: Iterable[Mapping[str, str]]) -> dict[str, Any]:
    """Return the state_dict from the tensors and metadata of `flat_optimizer`, from one or more files."""
    state, groups, values = dict[int, dict[str, Any]](), None, dict(tensors)
    for metadata in files:
        saved = json.loads(metadata["optimizer"])
        groups = groups or saved["param_groups"]
        values |= saved["plain"]
    if groups is None:
        return {}
    for name, value in values.items():
        index, key = name.split(".", 1)
        state.setdefault(int(index), {})[key] = value
    for group in groups:
        if "betas" in group:  # a tuple in torch; JSON has only lists
            group["betas"] = tuple(group["betas"])
    return {"state": state, "param_groups": groups}


def same_shapes(saved: Mapping[str, Tensor], model: torch.nn.Module) -> str:
    """Return the first difference in shape between saved weights and a model, in words; empty if none."""
    in_model = {name: tuple(t.shape) for name, t in model.state_dict().items()}
    in_file = {name: tuple(t.shape) for name, t in saved.items()}
    for name in sorted(in_model.keys() | in_file.keys()):
        if in_model.get(name) != in_file.get(name):
            return f"{name}: saved {in_file.get(name, 'nothing')}, model {in_model.get(name, 'nothing')}"
    return ""
