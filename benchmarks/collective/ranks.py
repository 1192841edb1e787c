"""One rank of a side: trains epochs over new samples, and reports the speed of each. See README.md here."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import satrap  # isort: skip  # before torch, like satrap's programs: see satrap.runtime.threads
import torch
import torch.distributed as dist

from benchmarks.train_vs_pytorch.__main__ import network
from benchmarks.train_vs_pytorch.workload import NUM_CATEGORICAL, Samples, cardinalities, generate, schema
from satrap.batch import EmbeddedBatch
from satrap.dense import ConnectedWorkers, Workers
from satrap.exchange import Exchange
from satrap.exchange.collective import Alone, CollectiveExchange
from satrap.exchange.collective.torch_ranks import TorchRanks
from satrap.exchange.servers import ServersExchange, Wire, WorkerId

LR, DENSE_LR = 0.01, 1e-3
Side = tuple[Callable[[Samples], object], Callable[[], object], Callable[[], dict[str, Any]]]
"""Three functions: train on samples; wait for all ranks; return the seconds of the last training by stage,
and the bytes sent so far."""
WIRES = {"float32": Wire("float32", "float32"), "int8": Wire("int8", "int8")}


class FarRanks(TorchRanks):
    """Ranks with a longer distance: their messages arrive later."""

    def __init__(self, delay: float) -> None:
        super().__init__(deadline=300.0)
        self._delay = delay

    def another(self) -> FarRanks:
        """See `Ranks.another`."""
        return FarRanks(self._delay)

    def all_to_all(self, given: Any, lengths: Sequence[int], sizes: Sequence[int]) -> list[Any]:
        """See `Ranks.all_to_all`."""
        time.sleep(self._delay)
        return super().all_to_all(given, lengths, sizes)


class FarWorkers(ConnectedWorkers):
    """Workers with a longer distance; their sum is a ring, in which every part is sent 2 (W - 1) times."""

    delay = 0.0

    def sum(self, tensor: torch.Tensor, *, exact: int | None = None) -> None:
        """See `Group.sum`."""
        time.sleep(2 * (self.size - 1) * self.delay)
        super().sum(tensor, exact=exact)


def satrap_side(options: argparse.Namespace) -> Side:
    """Collective ranks, or shard servers; any 64-bit id gets a row on first use."""
    described, workers = schema(options.dim), Workers()
    if options.world > 1:
        workers = FarWorkers(options.store, options.rank, options.world, host=options.host, deadline=300.0)
        workers.delay = options.delay / 1e3
    hybrid = "hybrid" in options.side

    def connect(tables: Any) -> Exchange:
        wire = WIRES.get(options.side.rpartition("-")[2], Wire())
        if options.side.startswith("servers"):
            worker = WorkerId(rank=options.rank, world=options.world, run="benchmark")
            mode = "hybrid" if hybrid else "sync"
            return ServersExchange(options.shards, tables, wire=wire, mode=mode, worker=worker)
        alone = options.world == 1
        ranks = Alone() if alone else FarRanks(options.delay / 1e3)
        return CollectiveExchange(ranks, tables, wire=wire)

    trainer = satrap.Trainer(
        network(options.tower, described),
        described,
        embedding_optimizer=satrap.optim.RowWiseAdagrad(lr=LR),
        dense_optimizer=lambda parameters: torch.optim.Adam(parameters, lr=DENSE_LR),
        mode="hybrid" if hybrid else "sync",
        staleness=4 if hybrid else 0,
        lookahead=2 if "lookahead" in options.side else 0,
        place=satrap.train.WorkerContext(connect, workers, threads=1),
    )

    def fit(samples: Samples) -> None:
        data = satrap.data.read(samples.columns(), described, batch_size=options.batch_size, shuffle=False)
        trainer.fit(data)

    def report() -> dict[str, Any]:
        stages, traffic = trainer.run.stages.seconds, trainer.exchange.telemetry.traffic()
        return {**stages, "sent": traffic.sent}

    return fit, lambda: workers.meet("pass"), report


def torchrec_side(options: argparse.Namespace) -> Side:
    """TorchRec's `DistributedModelParallel` over gloo with the planner's choice; tables of known size."""
    from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
    from torchrec.distributed import DistributedModelParallel, ShardingEnv
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.fbgemm_qcomm_codec import CommType, QCommsConfig, get_qcomm_codecs_registry
    from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
    from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
    from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

    rank, world, dim = options.rank, options.world, options.dim
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank))
    torch.set_num_threads(1)
    if options.rate:
        os.environ["GLOO_SOCKET_IFNAME"] = "eth0"  # of the namespace; else gloo takes the loopback
    host, port = options.store.split(":")
    dist.init_process_group("gloo", init_method=f"tcp://{host}:{port}", rank=rank, world_size=world)
    described, names = schema(dim), [f"C{i}" for i in range(NUM_CATEGORICAL)]
    sizes = cardinalities(options.rows)

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            tables = [
                EmbeddingBagConfig(
                    name=f"t{i}", embedding_dim=dim, num_embeddings=int(size), feature_names=[name]
                )
                for i, (name, size) in enumerate(zip(names, sizes, strict=True))
            ]
            self.bags = EmbeddingBagCollection(tables=tables, device=torch.device("meta"))
            self.tower = network(options.tower, described)

        def forward(self, ids: Any, numbers: torch.Tensor) -> torch.Tensor:
            block = self.bags(ids).values().view(len(numbers), NUM_CATEGORICAL, dim)
            features = dict(zip(names, block.unbind(1), strict=True))
            batch = EmbeddedBatch(len(numbers), features, numbers, blocks=[(tuple(names), block)])
            logits: torch.Tensor = self.tower(batch)
            return logits

    net = Net()
    apply_optimizer_in_backward(RowWiseAdagrad, net.bags.parameters(), {"lr": LR})
    codecs = None
    if options.side == "torchrec-16bit":
        short = QCommsConfig(forward_precision=CommType.FP16, backward_precision=CommType.BF16)
        codecs = get_qcomm_codecs_registry(short, device=torch.device("cpu"))
    sharders: Any = [EmbeddingBagCollectionSharder(qcomm_codecs_registry=codecs)]
    topology = Topology(world_size=world, compute_device="cpu", local_world_size=1 if options.rate else world)
    plan = EmbeddingShardingPlanner(topology=topology).collective_plan(net, sharders, dist.group.WORLD)
    model = DistributedModelParallel(
        net,
        device=torch.device("cpu"),
        env=ShardingEnv.from_process_group(dist.group.WORLD),
        plan=plan,
        sharders=sharders,
    )
    own = [p for name, p in model.named_parameters() if "tower" in name]
    optimizer, loss_of = torch.optim.Adam(own, lr=DENSE_LR), torch.nn.BCEWithLogitsLoss()
    lengths = torch.ones(NUM_CATEGORICAL * options.batch_size, dtype=torch.int64)

    def fit(samples: Samples) -> None:
        ids = torch.from_numpy(samples.ids)
        numbers, labels = torch.from_numpy(samples.numeric), torch.from_numpy(samples.labels).unsqueeze(1)
        for start in range(0, len(labels), options.batch_size):
            part = slice(start, start + options.batch_size)
            keyed = KeyedJaggedTensor(names, ids[part].t().contiguous().view(-1), lengths=lengths)
            loss = loss_of(model(keyed, numbers[part]), labels[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return fit, dist.barrier, dict


def main() -> None:
    """Train; rank 0 prints the samples per second of each measured epoch, all ranks together, as JSON.

    It also prints the milliseconds of its stages per step and its sent bytes per sample, over the measured
    epochs.
    """
    options = argparse.Namespace(**json.loads(os.environ["RANK_OPTIONS"]))
    fit, meet, report = (torchrec_side if "torchrec" in options.side else satrap_side)(options)
    sizes, speeds, seen = cardinalities(options.rows), [], list[dict[str, Any]]()
    for number in range(1 + options.passes):  # the first compiles and warms up
        steps = options.steps if number else options.warm_up
        count = steps * options.batch_size
        samples = generate(count, sizes, seed=1000 * options.seed + 100 * options.rank + number)
        meet()
        start = time.perf_counter()
        fit(samples)
        meet()
        speeds.append(round(options.world * count / (time.perf_counter() - start)))
        seen.append(report())
    if options.rank == 0:
        first, *others = seen
        spent = {name: sum(one[name] for one in others) for name in first if name != "sent"}
        if first:
            spent["sent"] = others[-1]["sent"] - first["sent"]
        spent = {name: value / (options.steps * options.passes) for name, value in spent.items()}
        print(json.dumps({"speeds": speeds[1:], "of_a_step": spent}), flush=True)
    os._exit(0)  # TorchRec's threads may not end


if __name__ == "__main__":
    main()
