"""Networks whose constructor has run, but whose large tensors have no memory yet."""

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

from satrap.dense.comm.workers import Workers
from satrap.errors import ConfigError, SatrapError

LARGE = 1 << 16
"""A new tensor with at least this many elements gets no memory."""

OWN_PAGES = 1 << 18
"""A tensor of at least this many bytes is computed in memory pages of its own."""

_NEW = {f"aten::{name}" for name in ("empty", "empty_strided", "zeros", "ones", "full", "eye", "arange")}
_NEW |= {f"aten::{name}" for name in ("rand", "randn", "randint", "randperm")}
_FILLS = {f"aten::{name}_" for name in ("uniform", "normal", "log_normal", "exponential", "cauchy", "random")}
"""Random operations whose number of draws does not depend on the contents of the tensor they fill."""
_OVERWRITES = _FILLS | {f"aten::{name}_" for name in ("zero", "fill", "copy")}

_RECORD = "satrap_deferred"
"""Attribute of a network that has tensors without memory."""


class NotDeferrableError(Exception):
    """A constructor used an operation that cannot be deferred."""


@dataclass(frozen=True, slots=True)
class _View:
    """The location of a tensor in memory that is not allocated yet."""

    memory: int
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def on(self, memory: torch.UntypedStorage) -> Tensor:
        """Return the tensor in this memory, now allocated."""
        return torch.empty(0, dtype=self.dtype).set_(memory, self.offset, self.size, self.stride)


@dataclass(frozen=True, slots=True)
class _Operation:
    """A deferred operation.

    Args:
        function: of PyTorch.
        arguments: (positional, named), with a `_View` instead of each tensor without memory.
        results: its return value, in the same form.
        reads, writes: the memories whose elements it needs, and the memories that it changes or makes.
        settles: the memories that it overwrites completely.
        state: state of the random generator before it; None: it draws no random numbers.
    """

    function: Any
    arguments: Any
    results: Any
    reads: set[int]
    writes: set[int]
    settles: set[int]
    state: Tensor | None


class _Fakes(FakeTensorMode):  # type: ignore[no-untyped-call]
    """Makes tensors without memory; rejects operations on them that are not being recorded."""

    noting = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[object] = (), kwargs: Mapping[str, object] = {}
    ) -> object:
        if not self.noting and not _is_view(func):
            raise NotDeferrableError(f"{func} on a weight that has no memory yet")
        return super().__torch_dispatch__(func, types, args, kwargs)


class _Copies(TorchFunctionMode):
    """Copies tensors without memory by an operation; `copy.deepcopy` would access their memory."""

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
    """Runs a constructor without memory for its large tensors, and computes each tensor later, by itself.

    Operations on tensors without memory are recorded, and run once the tensor is needed. Random numbers are
    drawn when they come up, which advances the generator as usual, and dropped. The state of the generator is
    recorded, so that they can be drawn again. An operation runs at once if it returns numbers outside
    tensors, or tensors whose size depends on numbers. So each tensor gets exactly the bytes of an ordinary
    construction, in whatever order tensors are computed. See `deferred`.

    Attributes:
        device: where tensors get their memory.
        place: returns a tensor there, or a copy of it elsewhere.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._fakes = _Fakes(allow_non_fake_inputs=True)
        self._fakes._allow_unsafe_data_ptr_access = False  # code that accesses the memory gets an error
        self._notes = list[_Operation]()
        # Kept alive, so that no other memory gets its address, by which memories are identified.
        self._memories = list[torch.UntypedStorage]()
        self._numbers = dict[int, int]()
        self._made = list[weakref.ref[Tensor]]()
        self._reading = False
        self.device = torch.device("cpu")
        self.place: Callable[[Tensor], Tensor] = lambda tensor: tensor

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operation, or record it."""
        named = dict(kwargs or {})
        tensors = [leaf for leaf in tree_leaves((args, named)) if isinstance(leaf, Tensor)]
        if not any(isinstance(tensor, FakeTensor) for tensor in tensors):
            new = not tensors and func._schema.name in _NEW and not self._reading
            return self._new(func, args, named) if new else func(*args, **named)
        if _is_view(func):
            return self._faked(func, args, named)
        kinds = {isinstance(tensor, FakeTensor) for tensor in _written(func, args, named)}
        if len(kinds) > 1 or (kinds == {True} and self._reading) or torch.Tag.inplace_view in func.tags:
            raise NotDeferrableError(f"{func} cannot be deferred")
        if True in kinds:
            return self._changed(func, args, named)
        if not kinds and not self._reading and not _is_random(func):
            try:
                results = self._faked(func, args, named)
            except RuntimeError:  # its result depends on numbers
                pass
            else:
                return self._note(func, args, named, results, None)
        return func(*self._real(args), **self._real(named))

    def _new(self, func: Any, args: Sequence[Any], named: dict[str, Any]) -> Any:
        """Make a tensor, without memory if it is large."""
        fake = self._faked(func, args, named)
        if fake.numel() < LARGE or fake.device.type != "cpu" or fake.layout != torch.strided:
            return func(*args, **named)
        state = _state(func, named)
        if state is not None:
            func(*args, **named)
        return self._note(func, args, named, fake, state)

    def _changed(self, func: Any, args: Sequence[Any], named: dict[str, Any]) -> Any:
        """Record a change of tensors without memory."""
        if (state := _state(func, named)) is not None:
            if func._schema.name not in _FILLS:
                raise NotDeferrableError(f"{func} draws random numbers in a way that is not supported")
            view = self._noted(args[0])
            func(view.on(self._memory(view.memory)), *self._real(args[1:]), **self._real(named))
        return self._note(func, args, named, self._faked(func, args, named), state)

    def _note(
        self, func: Any, args: Sequence[Any], named: dict[str, Any], found: Any, state: Tensor | None
    ) -> Any:
        """Record an operation, and return its result."""
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
        """Return an operation's result without its numbers."""
        self._fakes.noting = True
        try:
            with self._fakes:
                result = func(*args, **named)
        finally:
            self._fakes.noting = False
        self._made += [weakref.ref(leaf) for leaf in tree_leaves(result) if isinstance(leaf, FakeTensor)]
        return result

    def _number(self, tensor: Tensor) -> int:
        """Return the number of the memory that a tensor will lie in."""
        memory = tensor.untyped_storage()
        if memory._cdata not in self._numbers:
            self._numbers[memory._cdata] = len(self._memories)
            self._memories.append(memory)
        return self._numbers[memory._cdata]

    def _noted(self, value: Any) -> Any:
        """Return a value in its recorded form: the present elements, or a future location."""
        if isinstance(value, torch.Generator | torch.UntypedStorage | torch.TypedStorage):
            raise NotDeferrableError(f"an operation received a {type(value).__name__}")
        if not isinstance(value, FakeTensor):
            return value.detach().clone() if isinstance(value, Tensor) else value
        if value.is_conj() or value.is_neg() or value.layout != torch.strided or value.device.type != "cpu":
            raise NotDeferrableError(f"a tensor is {value.layout} on {value.device}")
        size, stride = tuple(map(int, value.size())), tuple(map(int, value.stride()))
        return _View(self._number(value), value.dtype, size, stride, int(value.storage_offset()))

    def _real(self, values: Any) -> Any:
        """Return values with all tensors computed."""
        return tree_map(lambda v: self._computed(v) if isinstance(v, FakeTensor) else v, values)

    def _computed(self, tensor: Tensor) -> Tensor:
        """Return a tensor with the elements that the recorded operations give it."""
        view: _View = self._noted(tensor)
        with torch.no_grad(), _disable_current_modes():
            memories = self._carried_out(view.memory)
            memory = memories.get(view.memory)  # None: nothing was ever written to it
            return view.on(self._memory(view.memory) if memory is None else memory)

    def _memory(self, number: int) -> torch.UntypedStorage:
        size = self._memories[number].nbytes()
        if size < OWN_PAGES:
            return torch.UntypedStorage(size)  # type: ignore[no-untyped-call]
        # The C library would not return freed memory that lies between parts in use.
        return torch.frombuffer(mmap.mmap(-1, size), dtype=torch.uint8).untyped_storage()

    def _carried_out(self, memory: int) -> dict[int, torch.UntypedStorage]:
        """Run the operations that a memory depends on; return it and the memories needed for it."""
        needed, chosen = {memory}, list[_Operation]()
        for operation in reversed(self._notes):
            if needed & operation.writes:
                chosen.append(operation)
                needed = (needed - operation.settles) | operation.reads
        memories = dict[int, torch.UntypedStorage]()

        def real(value: Any) -> Any:
            if not isinstance(value, _View):
                return value
            if value.memory not in memories:
                memories[value.memory] = self._memory(value.memory)
            return value.on(memories[value.memory])

        for operation in reversed(chosen):
            args, named = tree_map(real, operation.arguments)
            with _drawing_from(operation.state):
                results = operation.function(*args, **named)
            for view, tensor in zip(tree_leaves(operation.results), tree_leaves(results), strict=True):
                if isinstance(view, _View) and view.memory not in memories:
                    memories[view.memory] = self._kept(tensor, view)
        return memories

    def _kept(self, tensor: Tensor, view: _View) -> torch.UntypedStorage:
        """Return the memory of a result, laid out as recorded."""
        if (tensor.size(), tensor.dtype) != (view.size, view.dtype):
            raise NotDeferrableError(f"an operation returned {tensor.shape}, not {view.size}")
        if _covers(tensor) and tensor.stride() == view.stride:
            return tensor.untyped_storage()
        memory = self._memory(view.memory)
        view.on(memory).copy_(tensor)
        return memory

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Let a block compute with the network: each operation has the weights it needs while it runs."""
        self._reading = True
        try:
            with _explained(), self:
                yield
        finally:
            self._reading = False

    def digest(self, model: nn.Module) -> bytes:
        """Return a digest that differs between networks with different initial values."""
        digest = hashlib.sha256()
        for operation in self._notes:
            for value in (str(operation.function), *tree_leaves((operation.arguments, operation.state))):
                digest.update(_bytes(value))
        for name, tensor in _tensors(model):
            digest.update(_bytes(name) + _bytes(self._noted(tensor)))
        return digest.digest()

    def finish(self, model: nn.Module) -> None:
        """Fill the tensors that are neither parameters nor buffers.

        Raises:
            NotDeferrableError: the tensors of the network cannot be filled one at a time.
        """
        gc.collect()
        registered = {id(tensor) for _, tensor in _tensors(model)}
        alive = {id(tensor): tensor for ref in self._made if (tensor := ref()) is not None}
        memories = {self._number(tensor) for tensor in alive.values()}
        if len(memories) < len(alive):
            raise NotDeferrableError("two of its tensors share memory")
        if memories - set[int]().union(*(note.writes for note in self._notes)):
            raise NotDeferrableError("one of its tensors was made by an operation that was not recorded")
        self._forget()
        if any(weakref.getweakrefs(tensor) for tensor in alive.values()):
            raise NotDeferrableError("it keeps weak references to its tensors")
        for number, tensor in alive.items():
            if number not in registered:
                self._fill(tensor)

    def move(self, model: nn.Module, device: torch.device) -> None:
        """Move a network to a device; tensors without memory move when they get it."""
        self.device = device
        for _, tensor in _tensors(model):
            if not isinstance(tensor, FakeTensor):
                tensor.data = tensor.data.to(device)

    def fill(self, modules: Iterable[nn.Module]) -> None:
        """Give the parameters and buffers of some modules memory and their initial values.

        Raises:
            ConfigError: an operation of the constructor did not repeat its first result.
        """
        self._forget()
        with _explained():
            for module in modules:
                for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
                    if isinstance(tensor, FakeTensor):
                        self._fill(tensor)

    def _forget(self) -> None:
        """Drop weak references to tensors: a tensor that has any cannot be swapped."""
        self._fakes.fake_tensor_converter.meta_converter.tensor_memo.clear()
        self._made.clear()

    def _fill(self, tensor: Tensor) -> None:
        """Give a tensor memory in place: every reference to it sees the filled tensor."""
        new = self.place(self._computed(tensor).to(self.device))
        if isinstance(tensor, nn.Parameter):
            new = nn.Parameter(new, requires_grad=tensor.requires_grad)
        vars(new).update(_vars(tensor))
        torch.utils.swap_tensors(tensor, new)  # type: ignore[no-untyped-call]


def deferred(make: Callable[[], nn.Module], notice: Callable[[str], None] = lambda _: None) -> nn.Module:
    """Return the network that `make` makes, without memory for its large tensors, see `Deferred`.

    If its constructor uses an operation that cannot be deferred, `make` is called again, and the network is
    whole.

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
    except Exception as error:  # noqa: BLE001 - any error: if the constructor itself raised it, it comes again
        why = f"{type(error).__name__}: {error}".removeprefix("NotDeferrableError: ")
    else:
        model.__dict__[_RECORD] = record
        return model
    torch.set_rng_state(torchs)
    random.setstate(pythons)
    np.random.set_state(numpys)
    model = make()
    line = why.partition("\n")[0][:200]
    notice(f"note: each worker starts with the whole network in memory: {line}")
    return model


def deferral(model: nn.Module) -> Deferred | None:
    """Return the recorder that computes a network's tensors without memory; None: all have memory."""
    record: Deferred | None = model.__dict__.get(_RECORD)
    return record


def fill_all(model: nn.Module) -> None:
    """Give all tensors of a network memory."""
    if (record := model.__dict__.pop(_RECORD, None)) is not None:
        record.fill(model.modules())


def common(model: nn.Module, workers: Workers) -> Deferred | None:
    """Return the recorder of a network, if all workers have recorded the same network.

    None: the tensors have memory, and the initial values of worker 0. All workers call this.
    """
    record = deferral(model)
    digest = b"" if record is None else record.digest(model)
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


def _is_view(func: Any) -> bool:
    """Return whether an operation returns another view of its argument and changes nothing."""
    infos = [argument.alias_info for argument in func._schema.arguments if argument.alias_info is not None]
    return bool(infos) and not any(info.is_write for info in infos)


def _is_random(func: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags


def _written(func: Any, args: Sequence[Any], named: Mapping[str, Any]) -> list[Tensor]:
    """Return the tensors that an operation changes."""
    written = list[Any]()
    for number, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            written += tree_leaves(args[number] if number < len(args) else named.get(argument.name))
    return [leaf for leaf in written if isinstance(leaf, Tensor)]


def _covers(tensor: Tensor) -> bool:
    """Return whether a tensor covers all of its memory."""
    return tensor.is_contiguous() and tensor.numel() * tensor.itemsize == tensor.untyped_storage().nbytes()


def _state(func: Any, named: Mapping[str, Any]) -> Tensor | None:
    """Return the state of the generator that an operation will draw from; None: it draws nothing."""
    if not _is_random(func):
        return None
    return (named.get("generator") or torch.default_generator).get_state()


def _unseeded(named: Mapping[str, Any]) -> dict[str, None]:
    """Return named arguments without a generator: its state is recorded instead."""
    return {"generator": None} if "generator" in named else {}


@contextmanager
def _explained() -> Iterator[None]:
    """Turn a failure that shows only after the constructor into an error for the user."""
    try:
        yield
    except NotDeferrableError as error:
        raise ConfigError(
            f"the network cannot be built in parts: {error}",
            where="dense.mesh, or dense.offload.weights",
            why="the initial weights would differ from a single process's",
            fix="let the model's constructor use PyTorch's own operations, "
            "or train without dense.mesh and dense.offload.weights",
        ) from error


@contextmanager
def _drawing_from(state: Tensor | None) -> Iterator[None]:
    """Let a block draw from a state of the generator, or from none; then restore the generator."""
    before = torch.get_rng_state()
    if state is not None:
        torch.set_rng_state(state)
    yield
    if state is not None:
        torch.set_rng_state(before)
    elif not torch.equal(torch.get_rng_state(), before):
        raise NotDeferrableError("an operation drew random numbers without declaring it")


def _bytes(value: Any) -> bytes:
    if isinstance(value, Tensor):
        flat = value.detach().cpu().contiguous().view(-1)
        return repr((value.dtype, value.shape)).encode() + flat.view(torch.uint8).numpy().tobytes()
    return repr(value).encode()


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def _vars(tensor: Tensor) -> dict[str, Any]:
    """Return the attributes that a constructor set on a tensor."""
    with FakeTensorMode():
        usual = vars(nn.Parameter(torch.empty(0)))
    return {name: value for name, value in vars(tensor).items() if name not in usual}
