from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import satrap
from satrap.batch import EmbeddedBatch, JaggedRows
from satrap.tools.plan.dense import Inputs
from satrap.train import Trainer
from tests.tools.plan.dense.measured import Tower, arguments
from tests.train.plain import make_batches, make_schema


def shapes(batch: EmbeddedBatch) -> list[object]:
    found: list[object] = [batch.size, batch.numeric.shape, batch.labels.shape]  # type: ignore[union-attr]
    for name, one in batch.embeddings.items():
        value = one.values if isinstance(one, JaggedRows) else one
        found.append((name, value.shape, value.requires_grad))
    return found


def test_fake_batches_have_the_shapes_of_real_ones() -> None:
    for kinds in ({}, {"tags": satrap.Categorical(dim=8, multi=True, pooling="none")}):
        schema, [batch] = make_schema(**kinds), make_batches(1, size=16)
        trainer = Trainer(Tower(), schema, **arguments({}))
        plan, embeddings = trainer.predictor.plan, trainer.predictor.embeddings
        ticket = plan.ticket(batch)
        rows = embeddings.rows([torch.zeros(r.rows, 8) for r in ticket.requests])
        real = embeddings.embed(ticket, rows)
        expected = [*shapes(real), *([] if kinds else [real.flat().shape, real.stack().shape])]
        inputs = Inputs.of(schema, plan, ticket, 16)
        assert inputs.row_bytes == sum(row.numel() * 4 for row in rows)
        with FakeTensorMode():
            leaves = inputs.leaves()
            fake = inputs.batch(leaves)
            assert [*shapes(fake), *([] if kinds else [fake.flat().shape, fake.stack().shape])] == expected
            if not kinds:
                fake.flat().sum().backward()
                assert [leaf.grad.shape for leaf in leaves] == [row.shape for row in rows]  # type: ignore[union-attr]
            half = inputs.batch(inputs.leaves(), 8)
            assert half["user"].shape == (8, 8)
        trainer.close()


def test_a_larger_batch_has_more_ids() -> None:
    schema, [batch] = make_schema(tags=satrap.Categorical(dim=8, multi=True, pooling="none")), make_batches(1)
    trainer = Trainer(Tower(), schema, **arguments({}))
    plan = trainer.predictor.plan
    inputs = Inputs.of(schema, plan, plan.ticket(batch), 64)
    assert inputs.jagged["tags"][1].sum() == 2 * len(batch.ids["tags"].values)
    trainer.close()
