"""Click-through models: each a plain `nn.Module` with `forward(batch: EmbeddedBatch) -> logits`.

`satrap.models.DCNv2(schema, hidden=[256, 128])` in Python, `model: {name: dcnv2, hidden: [256, 128]}` in a
recipe. A model may have an attribute `embedding_dims: dict[str, int]`, feature -> width of its rows, where
that differs from the schema's dim; the trainer creates the tables accordingly.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import nn

from satrap.errors import ConfigError, did_you_mean
from satrap.models.dnn import DNN
from satrap.models.interaction.autoint import AutoInt
from satrap.models.interaction.dcnv2 import DCNv2
from satrap.models.interaction.deepfm import DeepFM
from satrap.models.interaction.dlrm import DLRM
from satrap.models.interaction.fibinet import FiBiNET
from satrap.models.interaction.finalmlp import FinalMLP
from satrap.models.interaction.finalnet import FinalNet
from satrap.models.interaction.fm import FM
from satrap.models.interaction.gdcn import GDCN
from satrap.models.interaction.masknet import MaskNet
from satrap.models.interaction.rankmixer import RankMixer
from satrap.models.interaction.wukong import Wukong
from satrap.models.interaction.xdeepfm import XDeepFM
from satrap.models.lr import LR
from satrap.models.multitask.esmm import ESMM
from satrap.models.multitask.mmoe import MMoE
from satrap.models.multitask.ple import PLE
from satrap.models.presets import PRESETS
from satrap.models.retrieval.bert4rec import BERT4Rec
from satrap.models.retrieval.gru4rec import GRU4Rec
from satrap.models.retrieval.sasrec import SASRec
from satrap.models.retrieval.two_tower import TwoTower
from satrap.models.sequence.bst import BST
from satrap.models.sequence.dien import DIEN
from satrap.models.sequence.din import DIN
from satrap.models.sequence.hstu import HSTU
from satrap.models.wide_deep import WideDeep
from satrap.runtime import user_code
from satrap.runtime.arguments import checked
from satrap.schema import Schema

__all__ = [
    "BST",
    "DIEN",
    "DIN",
    "DLRM",
    "DNN",
    "ESMM",
    "FM",
    "GDCN",
    "HSTU",
    "LR",
    "PLE",
    "AutoInt",
    "BERT4Rec",
    "DCNv2",
    "DeepFM",
    "FiBiNET",
    "FinalMLP",
    "FinalNet",
    "GRU4Rec",
    "MMoE",
    "MaskNet",
    "RankMixer",
    "SASRec",
    "TwoTower",
    "WideDeep",
    "Wukong",
    "XDeepFM",
    "arguments",
    "create",
    "create_own",
    "describe",
    "model_class",
    "names",
]

_MODELS: dict[str, type[nn.Module]] = {
    "lr": LR,
    "fm": FM,
    "dnn": DNN,
    "wide_deep": WideDeep,
    "deepfm": DeepFM,
    "dcnv2": DCNv2,
    "dlrm": DLRM,
    "xdeepfm": XDeepFM,
    "autoint": AutoInt,
    "fibinet": FiBiNET,
    "gdcn": GDCN,
    "masknet": MaskNet,
    "finalmlp": FinalMLP,
    "finalnet": FinalNet,
    "wukong": Wukong,
    "rankmixer": RankMixer,
    "mmoe": MMoE,
    "ple": PLE,
    "esmm": ESMM,
    "two_tower": TwoTower,
    "gru4rec": GRU4Rec,
    "sasrec": SASRec,
    "bert4rec": BERT4Rec,
    "din": DIN,
    "dien": DIEN,
    "bst": BST,
    "hstu": HSTU,
}


_OPTIONS = "satrap_options"
"""Attribute of a model that `create_own` made: its arguments."""


def names() -> tuple[str, ...]:
    """Return the names `create` knows, simplest model first."""
    return tuple(_MODELS)


@checked()
def arguments(name: str, preset: str | None = None) -> dict[str, Any]:
    """Return the arguments of a model other than the schema, with the values of a preset or their defaults.

    Raises:
        ConfigError: unknown name or preset; the message suggests the nearest one.
    """
    # Of the constructor, not of the class: some versions of Python show the arguments of `Ranker.__new__`.
    parameters = inspect.signature(model_class(name).__init__).parameters
    defaults = {
        key: parameter.default for key, parameter in parameters.items() if key not in ("self", "schema")
    }
    return {**defaults, **_preset(name, preset)}


@checked()
def create(name: str, schema: Schema, *, preset: str | None = None, **options: Any) -> nn.Module:
    """Build a model by its recipe name.

    Args:
        name: one of `names()`.
        schema: labels and features.
        preset: a named set of arguments, see `satrap.models.presets`: "tiny" or "published"; default None.
        options: arguments of the model, see `arguments(name)`; they override the preset.

    Raises:
        ConfigError: unknown name, argument or preset (the message suggests the nearest one), or the model
            rejects the schema or a value.
    """
    allowed = arguments(name)
    for key in options:
        if key not in allowed:
            raise ConfigError(f"model {name} has no argument {key!r}", fix=_suggest(key, allowed))
    return model_class(name)(schema, **{**_preset(name, preset), **options})


@checked()
def create_own(reference: str, schema: Schema, **options: Any) -> nn.Module:
    """Build the user's own model.

    Args:
        reference: a class that derives from `nn.Module`: `my_model.py:MyNet`, with the path of the file, or
            `package.module:MyNet`.
        schema: labels and features, its first argument.
        options: its other arguments.

    Raises:
        ConfigError: the class does not exist, takes other arguments (the message suggests the nearest one),
            or its constructor failed.
    """
    kind = user_code.find(reference)
    name = user_code.parts(reference)[1]
    if not isinstance(kind, type) or not issubclass(kind, nn.Module):
        raise ConfigError(
            f"{name} is not a model class", where=reference, fix="name a class derived from torch.nn.Module"
        )
    user_code.check_arguments(kind, name, options, first=1)
    with user_code.blaming(f"{name} cannot be constructed", ConfigError, reference):
        model = kind(schema, **options)
    model.__dict__[_OPTIONS] = options
    return model


@checked()
def describe(model: nn.Module) -> dict[str, Any] | None:
    """Return `{"name": ..., "arguments": {...}}` as `create` takes it, or None for any other model.

    For a model from `create_own`, returns `{"class": ..., "arguments": {...}}`.
    """
    for name, kind in _MODELS.items():
        if type(model) is kind:
            return {"name": name, "arguments": model.__dict__["arguments"]}
    if _OPTIONS in model.__dict__:
        return {"class": user_code.reference_of(type(model)), "arguments": model.__dict__[_OPTIONS]}
    return None


@checked()
def model_class(name: str) -> type[nn.Module]:
    """Return the class of a model; `ConfigError` for an unknown name, with the nearest one."""
    if name not in _MODELS:
        raise ConfigError(f"model {name!r} is unknown", fix=_suggest(name, _MODELS))
    return _MODELS[name]


def _preset(name: str, preset: str | None) -> Mapping[str, Any]:
    presets = PRESETS.get(name, {})
    if preset is None:
        return {}
    if preset not in presets:
        fix = _suggest(str(preset), presets) if presets else "remove preset: this model has no presets"
        raise ConfigError(f"model {name} has no preset {preset!r}", fix=fix)
    return presets[preset]


def _suggest(word: str, allowed: Mapping[str, Any]) -> str:
    if not allowed:
        return "remove the argument: this model takes no arguments"
    return f"{did_you_mean(word, allowed, cutoff=0.5)}allowed: {', '.join(allowed)}"


def __dir__() -> list[str]:
    return sorted(__all__)
