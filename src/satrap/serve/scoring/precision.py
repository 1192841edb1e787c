"""The number format in which a served network computes."""

from __future__ import annotations

import torch
from torch import nn

from satrap.errors import ConfigError, SatrapError
from satrap.train import Predictor
from satrap.train.step.dummy_batch import blank_batch


def compute_in(precision: str, predictor: Predictor) -> None:
    """Set the number format in which a predictor's network computes; its outputs stay float32.

    Args:
        precision: "float32": unchanged, as in `satrap predict`. "bfloat16": the factors of matrix products
            have 8 significant bits; so do the weights of linear layers, which take half the memory.
        predictor: owner of the network.

    Raises:
        ConfigError: the network cannot compute in this format.
    """
    if precision == "float32":
        return
    model = predictor.model
    # Autocast would round the weights in every forward pass. Rounding them once gives it the same values.
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            layer.to(torch.bfloat16)
    predictor.precision = precision
    model.eval()
    try:
        with torch.inference_mode():
            finite = predictor.logits(blank_batch(predictor.plan, predictor.embeddings)).isfinite().all()
        why = "" if finite else "the network's output is not finite"
    except (RuntimeError, TypeError, ValueError, SatrapError) as error:
        why = str(error).splitlines()[0]
    if why:
        raise ConfigError(
            f"model {type(model).__name__} cannot compute in {precision}",
            where="serving.precision",
            why=why,
            fix="serve the model with serving.precision: float32",
        )
