"""Losses of pairs as full matrices of scores, with operations of PyTorch only."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from satrap.batch import Ids
from satrap.data.catalogue import Catalogue
from satrap.losses import PairLoss, SampledSoftmax


def plain_loss(
    loss: PairLoss, queries: Tensor, items: tuple[Tensor, Ids], drawn: tuple[Tensor, Ids], counts: Catalogue
) -> Tensor:
    """Return the mean loss of queries float[n, width] and their items, among these and drawn ones.

    Args:
        loss: without `hardest`; a softmax has negatives in the batch.
        queries: float[n, width].
        items, drawn: vectors and ids of the items of the queries, and of drawn items.
        counts: the frequencies of items, for `logq`.
    """
    every = [items, drawn] if loss.in_batch else [drawn]
    others, ids = torch.cat([each[0] for each in every]), np.concatenate([each[1] for each in every])
    same, own = torch.from_numpy(items[1][:, None] == ids[None, :]), torch.arange(len(queries))
    scores = queries @ others.T
    if not isinstance(loss, SampledSoftmax):
        above = F.softplus(scores - (queries * items[0]).sum(1, keepdim=True)).masked_fill(same, 0.0)
        return (above.sum(1) / (~same).sum(1).clamp(min=1)).mean()
    scores = scores / loss.temperature
    if loss.logq:
        expected = len(queries) * counts.shares(ids) + len(drawn[1]) * counts.shares(ids, loss.power)
        scores = scores - torch.from_numpy(np.log(expected)).to(scores)
    same[own, own] = False
    return F.cross_entropy(scores.masked_fill(same, -math.inf), own)
