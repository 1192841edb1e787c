"""Networks whose constructor has run, and whose large tensors have no memory yet."""

from __future__ import annotations

import copy
import gc
import hashlib
import mmap
import random
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from satrap.dense.workers import Workers
from satrap.errors import ConfigError, SatrapError

LARGE = 1 << 16
"""Numbers from which on a new tensor gets no memory."""

OWN_PAGES = 1 << 18
"""Bytes from which on a tensor is computed in pages of its own."""

_NEW = {f"aten::{name}" for name in ("empty", "empty_strided", "zeros", "ones", "full", "eye", "arange")}
_NEW |= {f"aten::{name}" for name in ("rand", "randn", "randint", "randperm")}
_FILLS = {f"aten::{name}_" for name in ("uniform", "normal", "log_normal", "exponential", "cauchy", "random")}
"""Random operations that draw equally often, whatever is in the tensor that they fill."""
_OVERWRITES = _FILLS | {f"aten::{name}_" for name in ("zero", "fill", "copy")}

_RECORD = "satrap_deferred"
"""Attribute of a network with tensors without memory."""


class NotDeferrableError(Exception):
    """A constructor did what cannot be put off."""


@dataclass(frozen=True, slots=True)
class _View:
    """Where a tensor lies in a memory that there is not yet."""

    memory: int
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def on(self, memory: torch.UntypedStorage) -> Tensor:
        """Return the tensor, once there is such a memory."""
        return torch.empty(0, dtype=self.dtype).set_(memory, self.offset, self.size, self.stride)


@dataclass(frozen=True, slots=True)
class _Operation:
    """An operation that has not been carried out.

    Args:
        function: of PyTorch.
        arguments: (positional, named), with a `_View` in place of each tensor without memory.
        results: what it returns, in the same way.
        reads, writes: the memories whose numbers it needs, and those that it changes or makes.
        settles: those of which it leaves no earlier number.
        state: of the random generator before it; None: it draws nothing.
    """

    function: Any
    arguments: Any
    results: Any
    reads: set[int]
    writes: set[int]
    settles: set[int]
    state: Tensor | None


class _Fakes(FakeTensorMode):  # type: ignore[no-untyped-call]
    """Makes tensors without memory; refuses what is done to them while nobody takes notes."""

    noting = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[object] = (), kwargs: Mapping[str, object] = {}
    ) -> object:
        if not self.noting and not _is_view(func):
            raise NotDeferrableError(f"{func} on a weight that has no memory yet")
        return super().__torch_dispatch__(func, types, args, kwargs)


class _Copies(TorchFunctionMode):
    """Copies tensors without memory by an operation, where `copy.deepcopy` would look for their memory."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call a function."""
        if func is not Tensor.__deepcopy__ or not isinstance(args[0], FakeTensor):
            return func(*args, **(kwargs or {}))
        tensor, memo = args
        if id(tensor) not in memo:
            new = tensor.detach().clone()
            if isinstance(tensor, nn.Parameter):
                new = nn.Parameter(new, requires_grad=tensor.requires_grad)
            vars(new).update(copy.deepcopy(_vars(tensor), memo))
            memo[id(tensor)] = new
        return memo[id(tensor)]


class Deferred(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs a constructor without memory for its large tensors, and computes each of them later, by itself.

    Operations on tensors without memory are noted, and carried out once the tensor is wanted. Random numbers
    are drawn as they come, which leaves the generator where it belongs, and dropped; the state of the
    generator is noted, so they can be drawn again. An operation that returns other numbers than those of
    tensors, or tensors whose size depends on numbers, is carried out at once. So each tensor gets the bytes
    that it would have got at once, in whatever order tensors are computed. See `deferred`.

    Attributes:
        device: where tensors get their memory.
        place: returns a tensor there, or a copy of it elsewhere.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._fakes = _Fakes(allow_non_fake_inputs=True)
        self._fakes._allow_unsafe_data_ptr_access = False  # who looks for the memory gets an error
        self._notes = list[_Operation]()
        # Kept, so that no other memory gets its address: that is how memories are told apart.
        self._memories = list[torch.UntypedStorage]()
        self._numbers = dict[int, int]()
        self._made = list[weakref.ref[Tensor]]()
        self._reading = False
        self.device = torch.device("cpu")
        self.place: Callable[[Tensor], Tensor] = lambda tensor: tensor

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Carry an operation out, or note it."""
        named = dict(kwargs or {})
        tensors = [leaf for leaf in tree_leaves((args, named)) if isinstance(leaf, Tensor)]
        if not any(isinstance(tensor, FakeTensor) for tensor in tensors):
            new = not tensors and func._schema.name in _NEW and not self._reading
            return self._new(func, args, named) if new else func(*args, **named)
        if _is_view(func):
            return self._faked(func, args, named)
        kinds = {isinstance(tensor, FakeTensor) for tensor in _written(func, args, named)}
        if len(kinds) > 1 or (kinds == {True} and self._reading) or torch.Tag.inplace_view in func.tags:
            raise NotDeferrableError(f"{func} cannot be put off")
        if True in kinds:
            return self._changed(func, args, named)
        if not kinds and not self._reading and not _is_random(func):
            try:
                found = self._faked(func, args, named)
            except RuntimeError:  # what it returns depends on numbers
                pass
            else:
                return self._note(func, args, named, found, None)
        return func(*self._real(args), **self._real(named))

    def _new(self, func: Any, args: Sequence[Any], named: dict[str, Any]) -> Any:
        """Make a tensor, without memory if it is large."""
        found = self._faked(func, args, named)
        if found.numel() < LARGE or found.device.type != "cpu" or found.layout != torch.strided:
            return func(*args, **named)
        state = _state(func, named)
        if state is not None:
            func(*args, **named)
        return self._note(func, args, named, found, state)

    def _changed(self, func: Any, args: Sequence[Any], named: dict[str, Any]) -> Any:
        """Note a change of tensors without memory."""
        if (state := _state(func, named)) is not None:
            if func._schema.name not in _FILLS:
                raise NotDeferrableError(f"{func} draws random numbers in a way of its own")
            view = self._noted(args[0])
            func(view.on(self._memory(view.memory)), *self._real(args[1:]), **self._real(named))
        return self._note(func, args, named, self._faked(func, args, named), state)

    def _note(
        self, func: Any, args: Sequence[Any], named: dict[str, Any], found: Any, state: Tensor | None
    ) -> Any:
        """Note an operation, and return what it returned."""
        used = [leaf for leaf in tree_leaves((args, named)) if isinstance(leaf, FakeTensor)]
        arguments = tree_map(self._noted, (tuple(args), {**named, **_unseeded(named)}))
        reads = {self._number(tensor) for tensor in used}
        changed = {self._number(tensor) for tensor in _written(func, args, named)}
        before = len(self._memories)
        results = tree_map(self._noted, found)
        made = set(range(before, len(self._memories)))
        settles = set(made)
        if func._schema.name in _OVERWRITES and _covers(args[0]):
            reads = {self._number(tensor) for tensor in used[1:]}
            settles |= changed - reads
        self._notes.append(_Operation(func, arguments, results, reads, changed | made, settles, state))
        return found

    def _faked(self, func: Any, args: Sequence[Any], named: dict[str, Any]) -> Any:
        """Return what an operation returns, without its numbers."""
        self._fakes.noting = True
        try:
            with self._fakes:
                found = func(*args, **named)
        finally:
            self._fakes.noting = False
        self._made += [weakref.ref(leaf) for leaf in tree_leaves(found) if isinstance(leaf, FakeTensor)]
        return found

    def _number(self, tensor: Tensor) -> int:
        """Return the number of the memory that a tensor will lie in."""
        memory = tensor.untyped_storage()
        if memory._cdata not in self._numbers:
            self._numbers[memory._cdata] = len(self._memories)
            self._memories.append(memory)
        return self._numbers[memory._cdata]

    def _noted(self, value: Any) -> Any:
        """Return a value as it is kept: numbers as they are now, or where they will be."""
        if isinstance(value, torch.Generator | torch.UntypedStorage | torch.TypedStorage):
            raise NotDeferrableError(f"an operation got a {type(value).__name__}")
        if not isinstance(value, FakeTensor):
            return value.detach().clone() if isinstance(value, Tensor) else value
        if value.is_conj() or value.is_neg() or value.layout != torch.strided or value.device.type != "cpu":
            raise NotDeferrableError(f"a tensor is {value.layout} on {value.device}")
        size, stride = tuple(map(int, value.size())), tuple(map(int, value.stride()))
        return _View(self._number(value), value.dtype, size, stride, int(value.storage_offset()))

    def _real(self, values: Any) -> Any:
        """Return values with the numbers of all tensors."""
        return tree_map(lambda v: self._computed(v) if isinstance(v, FakeTensor) else v, values)

    def _computed(self, tensor: Tensor) -> Tensor:
        """Return a tensor with the numbers that the operations so far give it."""
        view: _View = self._noted(tensor)
        with torch.no_grad(), _disable_current_modes():
            memories = self._carried_out(view.memory)
            found = memories.get(view.memory)  # None: nothing was ever written to it
            return view.on(self._memory(view.memory) if found is None else found)

    def _memory(self, number: int) -> torch.UntypedStorage:
        size = self._memories[number].nbytes()
        if size < OWN_PAGES:
            return torch.UntypedStorage(size)  # type: ignore[no-untyped-call]
        # The C library would keep what is freed between parts that stay.
        return torch.frombuffer(mmap.mmap(-1, size), dtype=torch.uint8).untyped_storage()

    def _carried_out(self, memory: int) -> dict[int, torch.UntypedStorage]:
        """Carry out what a memory depends on, and return it and those that were needed for it."""
        wanted, chosen = {memory}, list[_Operation]()
        for one in reversed(self._notes):
            if wanted & one.writes:
                chosen.append(one)
                wanted = (wanted - one.settles) | one.reads
        memories = dict[int, torch.UntypedStorage]()

        def real(value: Any) -> Any:
            if not isinstance(value, _View):
                return value
            if value.memory not in memories:
                memories[value.memory] = self._memory(value.memory)
            return value.on(memories[value.memory])

        for one in reversed(chosen):
            args, named = tree_map(real, one.arguments)
            with _drawing_from(one.state):
                found = one.function(*args, **named)
            for view, tensor in zip(tree_leaves(one.results), tree_leaves(found), strict=True):
                if isinstance(view, _View) and view.memory not in memories:
                    memories[view.memory] = self._kept(tensor, view)
        return memories

    def _kept(self, tensor: Tensor, view: _View) -> torch.UntypedStorage:
        """Return the memory of a result, laid out as it was foreseen."""
        if (tensor.size(), tensor.dtype) != (view.size, view.dtype):
            raise NotDeferrableError(f"an operation returned {tensor.shape}, not {view.size}")
        if _covers(tensor) and tensor.stride() == view.stride:
            return tensor.untyped_storage()
        memory = self._memory(view.memory)
        view.on(memory).copy_(tensor)
        return memory

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Let a block compute with the network: an operation has the weights that it needs, while it runs."""
        self._reading = True
        try:
            with _explained(), self:
                yield
        finally:
            self._reading = False

    def digest(self, model: nn.Module) -> bytes:
        """Return what differs between networks with different first values."""
        found = hashlib.sha256()
        for one in self._notes:
            for value in (str(one.function), *tree_leaves((one.arguments, one.state))):
                found.update(_bytes(value))
        for name, tensor in _tensors(model):
            found.update(_bytes(name) + _bytes(self._noted(tensor)))
        return found.digest()

    def finish(self, model: nn.Module) -> None:
        """Fill the tensors that are neither parameters nor buffers.

        Raises:
            NotDeferrableError: the tensors of the network cannot be filled one by one.
        """
        gc.collect()
        own = {id(tensor) for _, tensor in _tensors(model)}
        kept = {id(tensor): tensor for one in self._made if (tensor := one()) is not None}
        memories = {self._number(tensor) for tensor in kept.values()}
        if len(memories) < len(kept):
            raise NotDeferrableError("two of its tensors share memory")
        if memories - set[int]().union(*(one.writes for one in self._notes)):
            raise NotDeferrableError("nothing is known of one of its tensors")
        self._forget()
        if any(weakref.getweakrefs(tensor) for tensor in kept.values()):
            raise NotDeferrableError("it keeps weak references to its tensors")
        for number, tensor in kept.items():
            if number not in own:
                self._fill(tensor)

    def move(self, model: nn.Module, device: torch.device) -> None:
        """Bring a network to a device, or its tensors once they get memory."""
        self.device = device
        for _, tensor in _tensors(model):
            if not isinstance(tensor, FakeTensor):
                tensor.data = tensor.data.to(device)

    def fill(self, modules: Iterable[nn.Module]) -> None:
        """Give the parameters and buffers of some modules memory, and their first values.

        Raises:
            ConfigError: an operation of the constructor did not do again what it did at first.
        """
        self._forget()
        with _explained():
            for module in modules:
                for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
                    if isinstance(tensor, FakeTensor):
                        self._fill(tensor)

    def _forget(self) -> None:
        """Drop weak references to tensors, which can be exchanged only without."""
        self._fakes.fake_tensor_converter.meta_converter.tensor_memo.clear()
        self._made.clear()

    def _fill(self, tensor: Tensor) -> None:
        """Make a tensor one with memory; whoever refers to it then has that."""
        new = self.place(self._computed(tensor).to(self.device))
        if isinstance(tensor, nn.Parameter):
            new = nn.Parameter(new, requires_grad=tensor.requires_grad)
        vars(new).update(_vars(tensor))
        torch.utils.swap_tensors(tensor, new)  # type: ignore[no-untyped-call]


def deferred(make: Callable[[], nn.Module], notice: Callable[[str], None] = lambda _: None) -> nn.Module:
    """Return the network that `make` makes, with no memory for its large tensors, see `Deferred`.

    If its constructor does what cannot be put off, it is called once more, and the network is whole.

    Args:
        make: makes the network.
        notice: called with a line of text in that case.
    """
    torchs, pythons = torch.get_rng_state(), random.getstate()
    numpys = np.random.get_state()
    record = Deferred()
    try:
        with record, _Copies():
            model = make()
        record.finish(model)
    except SatrapError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is: if it is the constructor's own, it comes again
        why = f"{type(error).__name__}: {error}".removeprefix("NotDeferrableError: ")
    else:
        model.__dict__[_RECORD] = record
        return model
    torch.set_rng_state(torchs)
    random.setstate(pythons)
    np.random.set_state(numpys)
    model = make()
    line = why.partition("\n")[0][:200]
    notice(f"note: each worker begins with the whole network in memory: {line}")
    return model


def deferral(model: nn.Module) -> Deferred | None:
    """Return what computes the tensors of a network that have no memory; None: they all have."""
    found: Deferred | None = model.__dict__.get(_RECORD)
    return found


def fill_all(model: nn.Module) -> None:
    """Give a network all its memory."""
    if (record := model.__dict__.pop(_RECORD, None)) is not None:
        record.fill(model.modules())


def common(model: nn.Module, workers: Workers) -> Deferred | None:
    """Return what computes the tensors of a network, if all workers have made the same one.

    None: its tensors have memory, and the first values of worker 0. All workers call it.
    """
    record = deferral(model)
    digest = b"" if record is None else record.digest(model)
    [count] = workers.count([digest == workers.share(digest)])
    if record is not None and count == workers.size:
        return record
    if count < workers.size:
        warnings.warn(
            "the workers made different networks: each begins with all of worker 0's, not with its part",
            RuntimeWarning,
            stacklevel=2,
        )
    fill_all(model)
    workers.broadcast(list(model.state_dict().values()))
    return None


def _is_view(func: Any) -> bool:
    """Return whether an operation returns another view of its argument and changes nothing."""
    infos = [one.alias_info for one in func._schema.arguments if one.alias_info is not None]
    return bool(infos) and not any(info.is_write for info in infos)


def _is_random(func: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags


def _written(func: Any, args: Sequence[Any], named: Mapping[str, Any]) -> list[Tensor]:
    """Return the tensors that an operation changes."""
    found = list[Any]()
    for number, one in enumerate(func._schema.arguments):
        if one.alias_info is not None and one.alias_info.is_write:
            found += tree_leaves(args[number] if number < len(args) else named.get(one.name))
    return [leaf for leaf in found if isinstance(leaf, Tensor)]


def _covers(tensor: Tensor) -> bool:
    """Return whether a tensor is all of its memory."""
    return tensor.is_contiguous() and tensor.numel() * tensor.itemsize == tensor.untyped_storage().nbytes()


def _state(func: Any, named: Mapping[str, Any]) -> Tensor | None:
    """Return the state of the generator from which an operation will draw; None: it draws nothing."""
    if not _is_random(func):
        return None
    return (named.get("generator") or torch.default_generator).get_state()


def _unseeded(named: Mapping[str, Any]) -> dict[str, None]:
    """Return named arguments without a generator: its state is kept in place of it."""
    return {"generator": None} if "generator" in named else {}


@contextmanager
def _explained() -> Iterator[None]:
    """Turn what is found only after the constructor into an error for the user."""
    try:
        yield
    except NotDeferrableError as error:
        raise ConfigError(
            f"the network cannot begin in parts: {error}",
            where="dense.mesh, or dense.offload.weights",
            why="its weights would begin with other numbers than in one process",
            fix="let the model's constructor use PyTorch's own operations, "
            "or train without dense.mesh and dense.offload.weights",
        ) from error


@contextmanager
def _drawing_from(state: Tensor | None) -> Iterator[None]:
    """Let a block draw from a state of the generator, or from none; then the generator is where it was."""
    before = torch.get_rng_state()
    if state is not None:
        torch.set_rng_state(state)
    yield
    if state is not None:
        torch.set_rng_state(before)
    elif not torch.equal(torch.get_rng_state(), before):
        raise NotDeferrableError("an operation has drawn random numbers without saying so")


def _bytes(value: Any) -> bytes:
    if isinstance(value, Tensor):
        flat = value.detach().cpu().contiguous().view(-1)
        return repr((value.dtype, value.shape)).encode() + flat.view(torch.uint8).numpy().tobytes()
    return repr(value).encode()


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def _vars(tensor: Tensor) -> dict[str, Any]:
    """Return the attributes that a constructor gave to a tensor."""
    with FakeTensorMode():
        usual = vars(nn.Parameter(torch.empty(0)))
    return {name: value for name, value in vars(tensor).items() if name not in usual}
