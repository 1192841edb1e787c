"""Steps of a tower on a CUDA device, by satrap and by a plain PyTorch loop, in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.torch_version import TorchVersion

from benchmarks.dense.rank import Parts, Tower, adam, batch_of, loss_of
from satrap.batch import EmbeddedBatch
from satrap.dense import DataParallelBackend, Mesh, Workers
from satrap.dense.compute import compiled
from satrap.dense.compute.precision import PRECISIONS, computed
from satrap.dense.memory.activation_checkpoint import checkpoint_activations
from satrap.dense.parallel import stages as cutting
from satrap.dense.parallel.pipeline_runner import Boundary, PipelineRunner, Stage

Step = Callable[[], object]

SIZES = {"wide": (8192, 4096, 8), "narrow": (8192, 1024, 6)}
"""Samples per batch, width and layers of a tower."""
PARTS = 8
"""Microbatches of a pipeline, and of the loop that it is compared with."""

_WARM, _ROUNDS = 4, 12

_TURN_MS = 60.0
"""Approximate time of a turn, which has two steps or more."""


def _placed(size: int, width: int, layers: int) -> tuple[Tower, EmbeddedBatch]:
    torch.manual_seed(0)
    model, batch = Tower(width, layers).cuda(), batch_of(size, width)
    assert batch.labels is not None
    return model, EmbeddedBatch(size, {}, batch.numeric.cuda(), labels=batch.labels.cuda())


def plain(sizes: tuple[int, int, int], precision: str, compiles: bool, *, fused: bool = True) -> Step:
    """Return a step as PyTorch's tutorials write it, with one kernel for Adam, or its default of ten."""
    model, batch = _placed(*sizes)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True if fused else None)
    network: nn.Module = torch.compile(model) if compiles else model

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=PRECISIONS[precision], enabled=precision != "float32"):
            logits = network(batch)
        loss_of(logits.float(), batch).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def backend(
    sizes: tuple[int, int, int],
    precision: str,
    *,
    compiles: bool = False,
    parts: int = 1,
    checkpointed: bool = False,
) -> Step:
    """Return a step as satrap's trainer takes it."""
    model, batch = _placed(*sizes)
    device = torch.device("cuda")
    if checkpointed:
        checkpoint_activations(model)
    if compiles:
        _compile(model, device)
    dense = DataParallelBackend(model, adam, None, Workers(), precision)
    dense.begin()
    batches = Parts(batch, parts)

    def loss(part: EmbeddedBatch) -> torch.Tensor:
        return loss_of(computed(partial(model, part), precision, device), part)

    def step() -> None:
        for part in batches:
            dense.backward(loss(part), 1 / parts)
        assert dense.step([], 1.0).result().accepted

    return step


def _compile(model: nn.Module, device: torch.device) -> None:
    """Compile blocks; with a PyTorch that satrap refuses, raise the limit that causes the refusal."""
    if TorchVersion(torch.__version__) >= compiled.PYTORCH:
        compiled.compile_blocks(model, device)
        return
    compile_ = torch.compile

    def older(function: Any, *, isolate_recompiles: bool = True, **options: Any) -> Any:
        return compile_(function, **options)

    torch._dynamo.config.recompile_limit = 64
    accepted, compiled.PYTORCH, torch.compile = compiled.PYTORCH, torch.__version__, older  # type: ignore[assignment]
    try:
        compiled.compile_blocks(model, device)
    finally:
        compiled.PYTORCH, torch.compile = accepted, compile_


def looped(sizes: tuple[int, int, int], stages: int) -> Step:
    """Return a step of a pipeline whose stages are all in this process, without overlap."""
    if not dist.is_initialized():
        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    model, batch = _placed(*sizes)
    mesh = Mesh(stages_per_rank=stages, schedule="looped_bfs", microbatches=PARTS)
    accepted, cutting.PYTORCH = cutting.PYTORCH, "2.11"  # these stages pass on nothing that it refuses
    try:
        cut = cutting.stages_of(model, mesh, batch)
    finally:
        cutting.PYTORCH = accepted
    boundaries = [[Boundary.of(tensor, batch.size) for tensor in one] for one in cut.handed]
    passes = PipelineRunner(
        {n: Stage(stage, first=n == 0, last=n == stages - 1) for n, stage in enumerate(cut.stages)},
        boundaries,
        mesh,
        group=dist.group.WORLD,
        device=torch.device("cuda"),
        backward=True,
    )
    optimizer, parts = adam(list(model.parameters())), Parts(batch, PARTS)

    def step() -> None:
        optimizer.zero_grad()
        passes.run(parts, lambda number, logits: loss_of(logits, parts[number]) / PARTS)
        optimizer.step()

    return step


def peak(precision: str) -> float:
    """Return the TFLOP/s of products of two matrices of 8,192 x 8,192 random numbers."""
    one, two = torch.randn(2, 8192, 8192, device="cuda", dtype=PRECISIONS[precision])
    count = 50 if precision == "bfloat16" else 10
    _timed(lambda: one @ two, 5)
    return 2 * 8192**3 / _timed(lambda: one @ two, count) / 1e9


def _timed(step: Step, steps: int) -> float:
    """Return the milliseconds of a step."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - start) / steps


def ways(sizes: tuple[int, int, int]) -> dict[str, tuple[str, Callable[[], Step]]]:
    """Return names of variants -> (the variant that each is compared with, the factory of its step)."""
    variants = dict[str, tuple[str, Callable[[], Step]]]()
    for precision, compiles in (("float32", False), ("bfloat16", False), ("bfloat16", True)):
        name = precision + ", compiled" * compiles
        variants[f"plain, {name}"] = f"plain, {name}", partial(plain, sizes, precision, compiles)
        if not compiles:
            by_default = partial(plain, sizes, precision, compiles, fused=False)
            variants[f"plain, {name}, Adam by default"] = f"plain, {name}", by_default
        variants[f"satrap, {name}"] = (
            f"plain, {name}",
            partial(backend, sizes, precision, compiles=compiles),
        )
    whole, cut = "satrap, float32", f"satrap, float32, {PARTS} micro-batches"
    variants[cut] = whole, partial(backend, sizes, "float32", parts=PARTS)
    variants["satrap, float32, checkpointed"] = whole, partial(backend, sizes, "float32", checkpointed=True)
    for stages in (2, 4):
        variants[f"{stages} stages in one process, {PARTS} micro-batches"] = (
            cut,
            partial(looped, sizes, stages),
        )
    return variants


def measure() -> dict[str, Any]:
    """Return milliseconds, TFLOP/s, share of the peak, and ratio to another variant, by variant."""
    torch.backends.cuda.matmul.allow_tf32 = False
    peaks = {precision: peak(precision) for precision in ("float32", "bfloat16")}
    results: dict[str, Any] = {"device": torch.cuda.get_device_name(), "peak_tflops": peaks}
    print(results, flush=True)
    for title, sizes in SIZES.items():
        size, width, layers = sizes
        flop = 6 * size * (layers * width * width + width)
        compared, steps, counts = dict[str, str](), dict[str, Step](), dict[str, int]()
        for name, (other, make) in ways(sizes).items():
            start = time.perf_counter()
            compared[name], steps[name] = other, make()
            _timed(steps[name], _WARM)
            counts[name] = max(2, int(_TURN_MS / _timed(steps[name], 2)))
            print(f"{title}: {name} is ready after {time.perf_counter() - start:.1f} s", flush=True)
        times: dict[str, list[float]] = {name: [] for name in steps}
        for _ in range(_ROUNDS):
            for name, step in steps.items():
                times[name].append(_timed(step, counts[name]))
        results[title] = {"size": size, "width": width, "layers": layers, "ways": {}}
        for name, milliseconds in times.items():
            speed = flop / statistics.median(milliseconds) / 1e9
            share = speed / peaks["bfloat16" if "bfloat16" in name else "float32"]
            base = times[compared[name]]
            ratio = statistics.median(was / is_now for was, is_now in zip(base, milliseconds, strict=True))
            results[title]["ways"][name] = {
                "median_ms": statistics.median(milliseconds),
                "tflops": speed,
                "share_of_peak": share,
                "speed_to": {compared[name]: ratio},
                "ms": milliseconds,
            }
            print(
                f"{title:7}{name:45}{statistics.median(milliseconds):9.3f} ms{speed:7.1f} TFLOP/s"
                f"{share:6.2f} of peak{ratio:6.3f} of {compared[name]}",
                flush=True,
            )
    return results
