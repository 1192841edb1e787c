"""GDCN: gated deep and cross network."""

from __future__ import annotations

from satrap.models.interaction.dcnv2 import DCNv2


class GDCN(DCNv2):
    """DCN-V2 with a gate in each cross layer, which weakens products that do not help.

    A layer is `x0 * (W x + b) * sigmoid(G x) + x`. The gate G has the shape of W, so cross layers have twice
    the weights of `DCNv2`.

    Reference: Wang et al., "Towards Deeper, Lighter and Interpretable Cross Network for CTR Prediction", CIKM
    2023: structure "parallel" is its GDCN-P, "stacked" its GDCN-S.

    Args:
        schema: labels and features; dims may differ.
        hidden: widths of the hidden layers, default 256 and 128.
        dropout: probability of zeroing a hidden activation in training, default 0.
        batch_norm: normalise before each ReLU, default off.
        cross_layers: number of cross layers, default 3.
        rank: rank of the cross and gate matrices; default None, full rank.
        bottom: widths of a ReLU MLP on the numbers, whose output replaces them. Default: none.
        structure: "parallel" (default; cross and MLP read the input) or "stacked" (the MLP reads the cross).

    Raises:
        ConfigError: no labels, a feature with pooling "none", or an invalid argument.
    """

    _gated = True
