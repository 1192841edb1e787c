"""Compiles every kernel for GPUs, without one; run as a script, it prints a JSON line for each.

A new kernel gets a line in `CASES`: the kernel, the types of its arguments, its compiled-in constants.
"""

from __future__ import annotations

import json
import pkgutil
import re
import subprocess
import tempfile
from collections.abc import Iterator
from importlib import import_module
from typing import Any, NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from satrap.store.gpu import kernels
from satrap.store.gpu.kernels import (
    counters,
    expiry,
    gradients,
    growth,
    index,
    insert,
    optimizers,
    order,
    rows,
)
from satrap.store.gpu.kernels.arguments import (
    Block,
    FirstRows,
    Gradients,
    Memory,
    Numbers,
    Reading,
    Request,
    Route,
    SampleBags,
    Shape,
    StepRule,
)
from satrap.store.gpu.layout import CHUNK, Buckets, Expired, Found, Inserted, Lists, Queue, Sorted
from satrap.store.gpu.order import Distinct
from satrap.store.gpu.slab import tile

ARCHITECTURES = (80, 90, 100)
I8, I16, I32, I64, F32, F64, BF16 = "*i8", "*i16", "*i32", "*i64", "*fp32", "*fp64", "*bf16"
INT, INT16 = "i32", "i32:16"
"""Any int, and one that is a multiple of 16. All pointers are multiples of 16 bytes."""
MANY = 1 << 22
"""Rows of a large launch."""


class Case(NamedTuple):
    """A kernel to compile.

    Attributes:
        kernel: the function.
        types: the type of each argument that is not compiled in.
        constants: the arguments that are compiled in.
        warps: warps of a program.
        everywhere: compile for each of ARCHITECTURES, not for 90 alone.
    """

    kernel: Any
    types: dict[str, Any]
    constants: dict[str, Any]
    warps: int = 4
    everywhere: bool = False

    @property
    def name(self) -> str:
        """The kernel and its constants."""
        return f"{self.kernel.__name__} {self.constants}"


def shape(dim: int, form: int = 0, vectors: int = 0, scalar: bool = False) -> Shape:
    """Return the layout that `DeviceSlab` gives to rows."""
    item = 2 if form else 4
    weights, vector = -(-item * dim // 16) * 16, -(-4 * dim // 16) * 16
    stride = weights + vectors * vector
    columns = 1 << (dim - 1).bit_length()
    return Shape(dim, columns, form, stride // item, stride // 4, vector // 4, vectors, scalar)


STATE = {0: (0, False), 1: (1, False), 2: (1, False), 3: (0, True), 4: (2, True), 5: (2, False)}
"""State vectors and scalar of each optimizer in `kernels.optimizers`."""
REQUEST = Request(slots=I32, ids=I64, tables=I16, runs=I32, starts=I32, order=I32, inverse=I32)
NUMBERS = Numbers(floats=F32, rate=F64, corrections=F64, noise=I64, last=INT)
LOOK = Reading(tables=False, initial=False)
ALL = Route(source=True, scale=True, chosen=True)
SHAPES = [shape(16), shape(64), shape(128), shape(128, form=1), shape(128, form=2), shape(100)]


def reading(s: Shape) -> dict[str, Any]:
    """Return the types of arguments that kernels of rows share."""
    return {
        "memory": Memory(weights=I16 if s.format else F32, state=F32, scalars=F32),
        "request": REQUEST,
        "initial": FirstRows(seeds=I64, scales=F32, state=F32),
        "out": Block(target=F32, stride=INT16, samples=INT, features=INT, chosen=I32),
        "bags": SampleBags(offsets=I32, inverse=I32, weights=F32, start=INT),
        "gradients": Gradients(rows=F32, batch=INT, features=INT, source=I32, scale=F32, chosen=I32),
        "numbers": NUMBERS,
        "pieces": F32,
    }


def on_rows(kernel: Any, s: Shape, constants: dict[str, Any], heavy: bool = False, **types: Any) -> Case:
    """Return the case of a kernel of rows, with the tile that `DeviceSlab` takes for many rows."""
    count, warps = tile(s.columns, MANY, heavy)
    shared = {k: v for k, v in reading(s).items() if k in kernel.arg_names}
    constexprs: dict[str, Any] = {"SHAPE": s, **constants}
    if "R" in kernel.arg_names:
        constexprs["R"] = count
    return Case(kernel, {**shared, **types}, constexprs, warps, everywhere=(s.dim, s.format) == (128, 0))


def stepping(kind: int, dim: int, form: int = 0, route: Route | None = None) -> Iterator[Case]:
    """Yield the kernels that step rows with an optimizer."""
    s = shape(dim, form, *STATE[kind])
    rule = {"RULE": StepRule(kind, shaped=kind % 2 == 0, clipped=kind == 2, bounded=form != 0)}
    yield on_rows(gradients.step_short, s, {**rule, "ROUTE": route or Route()}, s.vectors > 1)
    yield on_rows(gradients.step_long, s, rule)._replace(warps=max(4, s.columns // 64))


BUCKETS = Buckets(words=I64, halves=I32, owners=I16, state=I64)
FOUND = Found(slots=I32, status=I8, victims=I16)
QUEUE = Queue(runs=I32, count=I32)
INSERTED = Inserted(slots=I32, places=I32, gone_keys=I64, gone_tables=I16, spans=I32, made=I32, gone=I32)
KEYS = Distinct(keys=I64, tables=I16, ids=I64, starts=I32, order=I32, inverse=I32, runs=I32)
LISTS = Lists(free=I32, log=I64)
EXPIRED = Expired(sums=I32, dropped=I32, victims=I16)
SORTED = Sorted(keys=I64, positions=I64, owners=I16)


def of_index() -> Iterator[Case]:
    """Yield the kernels of the order and the index, for one table and for several."""
    for search in (0, 5):
        fixed = {"SEARCH": search, "BLOCK": 1024}
        yield Case(
            order.hash_ids,
            {"ids": I64, "splits": I64, "salts": I64, "count": I32, "out": SORTED, "n": INT},
            fixed,
            everywhere=True,
        )
        yield Case(order.count_runs, {"request": SORTED, "count": I32, "sums": I32}, fixed, everywhere=True)
        yield Case(
            order.write_runs,
            {"request": SORTED, "salts": I64, "count": I32, "sums": I32, "out": KEYS},
            fixed,
            everywhere=True,
        )
    for tables in (False, True):
        fixed = {"TABLES": tables, "BLOCK": CHUNK}
        for mode in (-2, -1, 0, 1, 2):
            yield Case(
                index.find,
                {"keys": KEYS, "index": BUCKETS, "found": FOUND, "sums": I32},
                {"MODE": mode, "TABLES": tables, "BLOCK": 256},
                8,
                everywhere=mode == 1,
            )
        for policy in (0, 1, 2):
            yield Case(
                insert.insert,
                {"queue": QUEUE, "keys": KEYS, "index": BUCKETS, "work": INSERTED},
                {"POLICY": policy, **fixed},
                8,
                everywhere=policy == 1,
            )
            yield Case(
                insert.settle,
                {"queue": QUEUE, "index": BUCKETS, "work": INSERTED, "lists": LISTS, "found": FOUND},
                {"POLICY": policy, **fixed},
                everywhere=policy == 1,
            )
        yield Case(growth.rebuild, {"old": BUCKETS, "new": BUCKETS, "lost": I32}, fixed, 8, everywhere=True)
        tile = 16 if tables else 1
        yield Case(
            counters.tally,
            {"found": FOUND, "tables": I16, "count": I32, "partial": I32, "columns": INT},
            {"TABLES": tables, "TILE": tile, "BLOCK": 256},
            everywhere=True,
        )
        yield Case(
            counters.add_up,
            {"partial": I32, "counters": I64, "tables": INT, "columns": INT, "parts": INT},
            {"TILE": tile},
            everywhere=True,
        )
        yield Case(
            expiry.expire,
            {"index": BUCKETS, "lists": LISTS, "out": EXPIRED, "window": INT},
            {"TABLES": tables, "BLOCK": 1024},
            everywhere=True,
        )
    yield Case(
        index.list_missing,
        {"keys": KEYS, "found": FOUND, "sums": I32, "queue": QUEUE},
        {"BLOCK": 1024, "PARTS": 4},
        everywhere=True,
    )
    yield Case(
        insert.end_insert,
        {"queue": QUEUE, "index": BUCKETS, "work": INSERTED},
        {"BLOCK": CHUNK},
        everywhere=True,
    )
    yield Case(counters.advance, {"index": BUCKETS}, {}, 1, everywhere=True)
    yield Case(
        expiry.count_expired,
        {"index": BUCKETS, "out": EXPIRED, "window": INT},
        {"BLOCK": 1024},
        everywhere=True,
    )
    yield Case(expiry.end_expiry, {"index": BUCKETS, "out": EXPIRED, "window": INT}, {}, 1, everywhere=True)


CASES = [
    *of_index(),
    *(on_rows(rows.gather, s, {"LOOKUP": LOOK}) for s in SHAPES),
    on_rows(rows.gather, shape(64, 1), {"LOOKUP": Reading(tables=True, initial=True)}, True),
    *(on_rows(rows.gather_positions, s, {"LOOKUP": LOOK}, start=INT) for s in SHAPES),
    *(on_rows(rows.pool, s, {"LOOKUP": LOOK}) for s in SHAPES),
    *(on_rows(rows.pool, SHAPES[2], {"LOOKUP": Reading(True, True, mode, True)}, True) for mode in (1, 2)),
    on_rows(rows.pool_max, SHAPES[2], {"LOOKUP": Reading(True, True, 3, True)}, True),
    *(
        Case(
            rows.trace,
            {
                "bags": reading(SHAPES[0])["bags"],
                "source": I32,
                "scale": F32,
                "samples": INT,
                "feature": INT,
                "features": INT,
            },
            {"LOOKUP": Reading(False, False, mode, True), "R": 128},
            everywhere=mode == 0,
        )
        for mode in range(4)
    ),
    *(
        on_rows(rows.initialize, shape(128, form, 2, True), {"TABLES": True}, fresh=I32, count=I32)
        for form in range(3)
    ),
    *(
        on_rows(rows.read, shape(128, form, 2, True), {}, slots=I32, n=INT, weights=F32, state=F32)
        for form in range(3)
    ),
    *(
        on_rows(
            rows.write, shape(128, form, 2, True), {}, rows=(I32, I64, I64), n=INT, weights=F32, state=F32
        )
        for form in range(3)
    ),
    on_rows(gradients.sum_pieces, SHAPES[2], {"ROUTE": Route()}),
    on_rows(gradients.sum_pieces, SHAPES[2], {"ROUTE": ALL}, True),
    *(case for kind in range(6) for case in stepping(kind, 128)),
    *(case for dim in (16, 64, 256, 100) for case in stepping(4, dim)),
    *(case for form in (1, 2) for case in stepping(4, 128, form)),
    *(case for case in stepping(0, 128, route=ALL)),
]


def found() -> set[str]:
    """Return the names of all kernels: functions of Triton that ask for the number of their program."""
    names = set()
    for module in pkgutil.iter_modules(kernels.__path__, kernels.__name__ + "."):
        for name, value in vars(import_module(module.name)).items():
            own = isinstance(value, triton.JITFunction) and value.__module__ == module.name
            if own and "tl.program_id" in value.src:
                names.add(name)
    return names


def paths(value: Any, at: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], str]]:
    """Yield each type in nested arguments with its path."""
    if isinstance(value, str):
        yield at, value
    else:
        for i, part in enumerate(value):
            yield from paths(part, (*at, i))


def plain(value: Any) -> Any:
    """Return types without the notes of divisibility."""
    if isinstance(value, str):
        return value.split(":")[0]
    parts = [plain(part) for part in value]
    return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)


def compiled(case: Case, architecture: int) -> dict[str, Any]:
    """Compile a kernel; return facts about its machine code."""
    names = case.kernel.arg_names
    signature = {name: plain(case.types[name]) if name in case.types else "constexpr" for name in names}
    attributes = {
        path: [["tt.divisibility", 16]]
        for i, name in enumerate(names)
        if name in case.types
        for path, kind in paths(case.types[name], (i,))
        if kind[0] == "*" or kind.endswith(":16")
    }
    constants = {(names.index(name),): value for name, value in case.constants.items()}
    source = ASTSource(case.kernel, signature, constants, attributes)
    options = {"num_warps": case.warps, "enable_fp_fusion": False}
    built = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)
    ptx = re.sub(r"//.*", "", built.asm["ptx"])
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(built.asm["cubin"])
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    s, rule = case.constants.get("SHAPE"), case.constants.get("RULE")
    return {
        "kernel": case.kernel.__name__,
        "name": case.name,
        "dim": s.dim if s else 0,
        "float32": bool(s) and s.format == 0,
        "vectors": s.vectors if s else 0,
        "in_double": bool(rule) and (rule.kind == optimizers.ADAM.value or rule.clipped),
        "architecture": architecture,
        "stack": int(re.findall(r"STACK:(\d+)", usage)[-1]),
        "registers": int(re.findall(r"REG:(\d+)", usage)[-1]),
        "memory": re.findall(r"\b(?:ld|st)\.global[\w.:]*|\bbar\.sync|\bbarrier\.sync", ptx),
        "atomic": re.findall(r"\b(?:atom|red|cas)\.[\w.]+", ptx),
        "local": re.findall(r"\b(?:ld|st)\.local[\w.]*|\.local\b", ptx),
        "double": re.findall(r"\b[\w.]+\.f64\b", ptx),
        "fused": re.findall(r"\bfma\.[\w.]+", ptx),
    }


if __name__ == "__main__":
    print(json.dumps(sorted(found())))
    for case in CASES:
        for architecture in ARCHITECTURES if case.everywhere else (90,):
            print(json.dumps(compiled(case, architecture)), flush=True)
