"""A rank of TorchRec: `DistributedModelParallel` over gloo on CPUs."""

from __future__ import annotations

import argparse
import os
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.collective.ranks import DENSE_LR, LR, Side
from benchmarks.train_vs_pytorch.__main__ import network
from benchmarks.train_vs_pytorch.workload import NUM_CATEGORICAL, Samples, cardinalities, schema
from satrap.batch import EmbeddedBatch


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
