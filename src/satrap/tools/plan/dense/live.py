"""Tracking of live tensor bytes during a computation, and their peak."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

_KNOWN = ""


class Live(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Tracks every tensor created inside its block, fake or real.

    Attributes:
        now: kind -> live bytes.
        most: the same at the moment when their sum was largest.
        flop: floating-point operations of matrix products.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now, self.most, self._sum, self._largest = Counter[str](), Counter[str](), 0, -1
        self._kinds, self.flop = dict[int, str](), 0

    def know(self, tensors: Iterable[Tensor]) -> None:
        """Ignore existing tensors; the caller counts them with `hold`."""
        for tensor in tensors:
            self._enter(tensor, _KNOWN)

    def hold(self, kind: str, count: int) -> None:
        """Count bytes that are not tensors here; a negative count frees them."""
        self.now[kind] += count
        self._sum += count
        if self._sum > self._largest:
            self._largest, self.most = self._sum, +self.now

    def begin(self, layer: int) -> None:
        """Count the largest layer in addition to all shards: a layer exists whole before it is sharded."""
        self.hold("parameters", layer)
        self.hold("parameters", -layer)

    def call(self, tensor: Tensor, kind: str) -> None:
        """Move a live tensor to another kind."""
        self._enter(tensor, "activations")
        key, size = id(tensor.untyped_storage()), tensor.untyped_storage().nbytes()
        was, self._kinds[key] = self._kinds[key], kind
        self.now[was] -= size
        self.now[kind] += size

    def follow(self, parameter: Tensor, kind: str = "gradients") -> None:
        """Count the gradient of a leaf as a kind, once it exists."""
        if parameter.requires_grad:
            called = partial(self._computed, kind)
            parameter.register_post_accumulate_grad_hook(called)  # type: ignore[no-untyped-call]

    def _computed(self, kind: str, parameter: Tensor) -> None:
        assert parameter.grad is not None
        self.call(parameter.grad, kind)

    def _enter(self, tensor: Tensor, kind: str) -> None:
        storage = tensor.untyped_storage()
        key = id(storage)
        if key in self._kinds:
            return
        size = 0 if kind == _KNOWN else storage.nbytes()  # known tensors do not count
        self._kinds[key] = kind
        weakref.finalize(storage, self._leave, key, size).atexit = False
        self.hold(kind, size)

    def _leave(self, key: int, size: int) -> None:
        kind = self._kinds.pop(key)
        self.hold(kind, -size)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        output = func(*args, **kwargs or {})
        # Not `FlopCounterMode`: its module hooks keep tensors alive under activation recomputation.
        if (flop := flop_registry.get(func._overloadpacket)) is not None:
            self.flop += flop(*args, **kwargs or {}, out_val=output)
        for leaf in tree_leaves(output):
            if isinstance(leaf, Tensor):
                self._enter(leaf, "activations")
        return output
