"""Initial weights as functions of a seed and of module names, so that a network can begin in parts."""

from __future__ import annotations

import gc
import hashlib
import mmap
import random
import warnings
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode

from satrap.dense.comm.workers import Workers

T = TypeVar("T")

LARGE = 1 << 16
"""A module with at least this many numbers of its own has memory for them only while `computed` calls it."""

OWN_PAGES = 1 << 18
"""A tensor of at least this many bytes is computed in memory pages of its own."""

_OVERWRITES = {"uniform_", "normal_", "kaiming_uniform_", "zero_", "fill_", "constant_", "copy_"}
"""Operations that set all numbers of a tensor, whatever they were before."""

_CHANGES = {
    f"__{name}__" for name in ("setitem", "iadd", "isub", "imul", "itruediv", "ifloordiv", "ipow", "imod")
}
_CHANGES |= {f"__{name}__" for name in ("iand", "ior", "ixor", "ilshift", "irshift")}
"""Operators that change a tensor, besides the methods whose names end with an underscore."""

_IS_META: Any = Tensor.is_meta.__get__  # type: ignore[attr-defined]
_DEVICE: Any = Tensor.device.__get__

_RECORD = "satrap_initial_weights"
"""Attribute of a network that has tensors without memory."""


class NotRepeatableError(Exception):
    """A constructor initializes weights in another way than by `reset_parameters`."""


class InitialWeights:
    """Computes the initial weights of each module of a network by itself.

    The parameters and buffers of a module are set by its `reset_parameters`, with PyTorch's generator seeded
    by a hash of the seed and of the module's name. So they depend neither on other modules nor on the order,
    and each process computes the modules it needs.

    Args:
        model: the network, on the meta device.
        seed: the seed of all its modules.

    Attributes:
        device: where tensors get their memory.
        place: returns a tensor there, or a copy of it elsewhere.
    """

    def __init__(self, model: nn.Module, seed: int) -> None:
        self.seed, self.device = seed, torch.device("cpu")
        self.place: Callable[[Tensor], Tensor] = lambda tensor: tensor
        self._names = {module: name for name, module in model.named_modules() if _own(module)}

    @property
    def digest(self) -> bytes:
        """A digest that differs between networks with different weights."""
        tensors = [(name, list(map(repr, _own(module).values()))) for module, name in self._names.items()]
        return hashlib.sha256(repr((self.seed, tensors)).encode()).digest()

    def fill(self, modules: Iterable[nn.Module], *, parameters: bool = True) -> None:
        """Give modules' own tensors memory and their initial values, in place: every reference sees them.

        Args:
            modules: some modules.
            parameters: False: only buffers stay in memory.
        """
        for module in modules:
            for name, old in self._lend(module).items():
                new = getattr(module, name)
                setattr(module, name, old)
                if parameters or not isinstance(old, nn.Parameter):
                    new.data = self.place(new.to(self.device))
                    new.requires_grad_(old.requires_grad)
                    vars(new).update(vars(old))
                    torch.utils.swap_tensors(old, new)  # type: ignore[no-untyped-call]

    def computed(self, model: nn.Module, compute: Callable[[], T]) -> T:
        """Return the result of a computation with the network, whose graph cannot be used.

        A large module has its weights only while it computes. If a module reads the weights of another, the
        whole network gets memory.
        """
        sizes = {module: sum(tensor.numel() for tensor in _own(module).values()) for module in self._names}
        self.fill(module for module, size in sizes.items() if size < LARGE)
        try:
            with self._lending(module for module, size in sizes.items() if size >= LARGE), _NoMeta():
                return compute()
        except (RuntimeError, NotImplementedError) as error:
            if "meta" not in str(error):
                raise
        self.fill(model.modules())
        return compute()

    @contextmanager
    def _lending(self, modules: Iterable[nn.Module]) -> Iterator[None]:
        lent, hooks = dict[nn.Module, dict[str, Tensor]](), list[Any]()

        def before(module: nn.Module, _: object) -> None:
            lent[module] = self._lend(module)

        def after(module: nn.Module, _: object, result: Any) -> None:
            for name, tensor in lent.pop(module, {}).items():
                setattr(module, name, tensor)
                for output in result if isinstance(result, tuple) else (result,):
                    # The graph must not keep the weights, so they are constants in it.
                    if tensor.requires_grad and isinstance(output, Tensor) and output.is_leaf:
                        output.requires_grad_(torch.is_grad_enabled())

        for module in modules:
            hooks.append(module.register_forward_pre_hook(before))
            hooks.append(module.register_forward_hook(after, always_call=True))
        try:
            with saved_tensors_hooks(lambda _: None, lambda _: torch.empty(0)):
                yield
        finally:
            for hook in hooks:
                hook.remove()

    def _lend(self, module: nn.Module) -> dict[str, Tensor]:
        """Give a module its own tensors' initial values, as constants; return the tensors without memory."""
        empty = {name: tensor for name, tensor in _own(module).items() if tensor.is_meta}
        for name, tensor in empty.items():
            values = _allocated(tensor)
            trains = isinstance(tensor, nn.Parameter)
            setattr(module, name, nn.Parameter(values, requires_grad=False) if trains else values)
        if empty:
            name = self._names[module]
            seed = hashlib.blake2b(f"{self.seed}/{name}".encode(), digest_size=8).digest()
            with torch.random.fork_rng(devices=()):
                torch.default_generator.manual_seed(int.from_bytes(seed, "big"))
                module.reset_parameters()  # type: ignore[operator]
        return empty


def build(
    make: Callable[[], nn.Module],
    seed: int,
    *,
    in_parts: bool = False,
    notice: Callable[[str], None] = lambda _: None,
) -> nn.Module:
    """Return the network that `make` makes, with `InitialWeights`.

    A network whose constructor initializes weights in another way than by the `reset_parameters` of the
    module that owns them, and one that does not support the meta device, is made as PyTorch makes it, with
    all its memory and with random numbers from PyTorch's generator.

    Args:
        make: makes the network; called twice in that case.
        seed: seed of the weights, and of PyTorch's generator.
        in_parts: return tensors without memory, see `initial_weights`; default: they have their values.
        notice: called with a line of text if this is not possible.
    """
    generators = random.getstate(), np.random.get_state()
    torch.manual_seed(seed)
    before = _generators()
    try:
        with torch.device("meta"), _WriteLog() as log:
            model = make()
        log.check(model)
        del log  # its weak references to tensors
        if _generators() != before:
            raise NotRepeatableError("it draws random numbers")
    except Exception as error:  # noqa: BLE001 - any error: if the constructor itself raised it, it comes again
        why = f"{type(error).__name__}: {error}".removeprefix("NotRepeatableError: ").partition("\n")[0]
    else:
        model.__dict__[_RECORD] = InitialWeights(model, seed)
        if not in_parts:
            fill_all(model)
        return model
    random.setstate(generators[0])
    np.random.set_state(generators[1])
    torch.manual_seed(seed)
    if in_parts:
        notice(f"note: each worker starts with the whole network in memory: {why[:200]}")
    return make()


def initial_weights(model: nn.Module) -> InitialWeights | None:
    """Return what computes the weights of a network without memory; None: all tensors have memory."""
    record: InitialWeights | None = model.__dict__.get(_RECORD)
    return record


def fill_all(model: nn.Module) -> None:
    """Give all tensors of a network memory."""
    if (record := model.__dict__.pop(_RECORD, None)) is not None:
        record.fill(model.modules())


def common(model: nn.Module, workers: Workers) -> InitialWeights | None:
    """Return what computes the weights of a network, if all workers have the same network.

    None: the tensors have memory, and the initial values of worker 0. All workers call this.
    """
    record = initial_weights(model)
    digest = b"" if record is None else record.digest
    [count] = workers.count([digest == workers.share(digest)])
    if record is not None and count == workers.size:
        return record
    if count < workers.size:
        warnings.warn(
            "the workers built different networks: each starts with all of worker 0's, not with its part",
            RuntimeWarning,
            stacklevel=2,
        )
    fill_all(model)
    workers.broadcast(list(model.state_dict().values()))
    return None


class _NoMeta(TorchFunctionMode):
    """Raises an error for operations that have a result although an argument has no memory.

    PyTorch multiplies such a matrix as if it had some.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operation."""
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and not result.is_meta:
            nested = [each for values in args if isinstance(values, list | tuple) for each in values]
            for value in (*args, *nested, *(kwargs or {}).values()):
                if isinstance(value, Tensor) and value.is_meta:
                    raise RuntimeError("an operation received a tensor on the meta device")
        return result


class _WriteLog(TorchFunctionMode):
    """Notes the operations that change tensors on the meta device, and the tensors that they return."""

    def __init__(self) -> None:
        super().__init__()
        self._writes = defaultdict[int, list[str]](list)
        # Kept alive, so that no other memory gets its address, by which memories are identified.
        self._memories = list[torch.UntypedStorage]()
        self._made = list[weakref.ref[Tensor]]()
        self._doubt = False

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operation, and note it."""
        if func == _IS_META:
            return False  # else some functions of `torch.nn.init` would do nothing
        named, name = dict(kwargs or {}), getattr(func, "__name__", "")
        target, *others = [named["out"]] if "out" in named else [*args, *named.values(), None]
        if name == "normal_" and isinstance(target, Tensor) and target.is_meta:
            result: Any = target  # without the import of PyTorch's compiler, which takes seconds
        else:
            result = func(*args, **named)
        if isinstance(result, Tensor) and result.is_meta:
            self._made.append(weakref.ref(result))
        self._doubt |= name.startswith("register_") or func == _DEVICE
        changes = name.endswith("_") and not name.endswith("__") and name != "requires_grad_"
        if changes or name in _CHANGES or "out" in named:
            for tensor in target if isinstance(target, list | tuple) else [target]:
                if isinstance(tensor, Tensor) and tensor.is_meta:
                    place = tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
                    values = [v.shape if isinstance(v, Tensor) else v for v in others]
                    self._memories.append(tensor.untyped_storage())
                    self._writes[_memory(tensor)].append(repr((name, place, values)))
        return result

    def check(self, model: nn.Module) -> None:
        """Raise `NotRepeatableError` unless `reset_parameters` of all modules repeats the constructor."""
        owners = dict[int, str]()
        for name, module in model.named_modules():
            tensors = {f"{name}.{key}".lstrip("."): tensor for key, tensor in _own(module).items()}
            for full, tensor in tensors.items():
                if not _plain(tensor):
                    raise NotRepeatableError(f"{full} is a {type(tensor).__name__} on {tensor.device}")
                if (memory := _memory(tensor)) in owners:
                    raise NotRepeatableError(f"{full} shares its memory with {owners[memory]}")
                owners[memory] = full
            if tensors and not callable(getattr(module, "reset_parameters", None)):
                raise NotRepeatableError(f"{type(module).__name__} has no method reset_parameters")
        if self._doubt:
            raise NotRepeatableError("it reads the device of a tensor, or registers a hook of one")
        if self._left({id(t) for m in model.modules() for t in _own(m).values()}):
            raise NotRepeatableError("it keeps tensors that are neither parameters nor buffers")
        self._made.clear()
        for module in filter(_own, model.modules()):
            if any(map(weakref.getweakrefs, _own(module).values())):
                raise NotRepeatableError(f"{type(module).__name__} keeps weak references to its tensors")
            self._check_reset(module, owners)

    def _check_reset(self, module: nn.Module, owners: Mapping[int, str]) -> None:
        tensors = {_memory(tensor): tensor for tensor in _own(module).values()}
        changes = {memory: tensor._version for memory, tensor in tensors.items()}  # also of other threads
        with torch.device("meta"), _WriteLog() as again:
            module.reset_parameters()  # type: ignore[operator]
        for memory in again._writes.keys() & owners.keys() - tensors.keys():
            raise NotRepeatableError(f"reset_parameters of {type(module).__name__} sets {owners[memory]}")
        for memory, tensor in tensors.items():
            same = again._writes[memory] == self._writes[memory] and tensor._version == 2 * changes[memory]
            if not same or not again._sets(tensor):
                raise NotRepeatableError(f"{owners[memory]} is not set by reset_parameters alone")

    def _sets(self, tensor: Tensor) -> bool:
        """Return whether the first operation on a tensor sets all of it."""
        first = self._writes[_memory(tensor)][:1]
        whole = tuple(tensor.shape), tensor.stride(), 0
        return any(note.startswith(f"({name!r}, {whole!r}") for name in _OVERWRITES for note in first)

    def _left(self, registered: Set[int]) -> bool:
        """Return whether other tensors than these are still in use."""
        for _ in range(2):  # the first time, some may be in circles
            tensors = [tensor for ref in self._made if (tensor := ref()) is not None]
            if registered >= set(map(id, tensors)):
                return False
            del tensors
            gc.collect()
        return True


def _generators() -> tuple[Any, ...]:
    """Return the states of all generators, for comparison."""
    numpys = np.random.get_state(legacy=False)["state"]
    return torch.get_rng_state().tolist(), random.getstate(), numpys["key"].tolist(), numpys["pos"]


def _own(module: nn.Module) -> dict[str, Tensor]:
    """Return a module's own parameters and buffers by name, with parameters that several modules share."""
    parameters: dict[str, Tensor] = dict(module.named_parameters(recurse=False, remove_duplicate=False))
    return parameters | dict(module.named_buffers(recurse=False, remove_duplicate=False))


def _memory(tensor: Tensor) -> int:
    address: int = tensor.untyped_storage()._cdata
    return address


def _plain(tensor: Tensor) -> bool:
    """Return whether a tensor has all of a memory on the meta device, in order."""
    return (
        type(tensor) in (Tensor, nn.Parameter)
        and tensor.is_meta
        and tensor.is_contiguous()
        and tensor.untyped_storage().nbytes() == tensor.numel() * tensor.itemsize
    )


def _allocated(tensor: Tensor) -> Tensor:
    """Return a tensor of a shape and type in host memory, with any numbers."""
    count = tensor.numel() * tensor.itemsize
    if count < OWN_PAGES:
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    # The C library would not return freed memory that lies between parts in use.
    pages = mmap.mmap(-1, count, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=tensor.dtype).view(tensor.shape)
