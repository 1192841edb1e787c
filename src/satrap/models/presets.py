"""Named sets of model arguments: sizes for a CPU, and published sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PRESETS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "xdeepfm": {"tiny": {}, "published": {"cin": [16, 16], "hidden": [400, 400, 400]}},
    "autoint": {
        "tiny": {},
        "published": {
            "layers": 3,
            "heads": 2,
            "head_width": 128,
            "layer_norm": True,
            "hidden": [400, 400, 400],
            "batch_norm": True,
        },
    },
    "fibinet": {
        "tiny": {},
        "published": {"bilinear": "pair", "reduction": 12, "hidden": [400, 400, 400]},
    },
    "gdcn": {"tiny": {}, "published": {"cross_layers": 3, "hidden": [1024, 512, 256]}},
    "masknet": {
        "tiny": {},
        "published": {
            "blocks": [400, 400, 400],
            "structure": "serial",
            "reduction": 0.2,
            "hidden": [],
            "normalise": False,
        },
    },
    "finalnet": {"tiny": {}, "published": {"hidden": [400, 400], "batch_norm": True, "gate": True}},
    "wukong": {
        "tiny": {},
        "published": {"layers": 3, "fmb": 40, "lcb": 40, "fmb_hidden": [32, 32], "hidden": [32, 32]},
    },
    "rankmixer": {
        "tiny": {},
        "published": {"layers": 2, "tokens": 16, "width": 768},
        "published_1b": {"layers": 2, "tokens": 32, "width": 1536},
    },
    "mmoe": {
        "tiny": {},
        "published": {"experts": 3, "expert_hidden": [512, 256, 128], "hidden": [256, 128, 64]},
    },
    "ple": {
        "tiny": {},
        "published": {"levels": 2, "own_experts": 2, "shared_experts": 2, "expert_hidden": [512, 256, 128]},
    },
    "esmm": {"tiny": {}, "published": {"hidden": [360, 200, 80]}},
    "gru4rec": {"tiny": {}, "published": {"layers": 1, "hidden": 100, "dropout": 0.0}},
    "sasrec": {"tiny": {}, "published": {"layers": 2, "heads": 1, "dropout": 0.2}},
    "bert4rec": {"tiny": {}, "published": {"layers": 2, "heads": 2, "dropout": 0.2, "masked": 0.2}},
    "din": {
        "tiny": {},
        "published": {"attention": [512, 256], "activation": "dice", "hidden": [1024, 512, 256]},
    },
    "dien": {"tiny": {}, "published": {"attention": [256, 128], "hidden": [1024, 512, 256]}},
    "bst": {"tiny": {}, "published": {"heads": 8, "hidden": [1024, 512, 256]}},
    "hstu": {"tiny": {}, "published": {"layers": 5, "width": 512, "heads": 4}},
}
"""Model -> preset -> arguments; other arguments have their defaults, which are the preset "tiny".

xdeepfm, autoint (AutoInt+), fibinet, masknet, finalnet: the best of BARS on Criteo_x1. gdcn: FuxiCTR's
configuration. wukong, ple, din, dien, bst: the sizes of FuxiCTR's published results. rankmixer: Zhu et al.,
arXiv 2507.15551, 2025, over a hundred million weights, and a billion. mmoe: the documentation of
TorchEasyRec. esmm: its paper. hstu: DLRMv3, a ranker of MLPerf Inference. gru4rec, sasrec and bert4rec: the
code of their authors; the width is the dim of the item's table.

- gru4rec: dim 100, on RSC15, with rows that inputs and outputs share: paramfiles/rsc15_xe_shared_100_best.py
  of github.com/hidasib/GRU4Rec, which also zeroes numbers of states, 0.4 of them, as this model does not.
- sasrec: dim 50 and 200 events, on MovieLens-1M: README.md and main.py of github.com/kang205/SASRec, whose
  blocks have 50 hidden columns and ReLU, and these have 200 and GELU.
- bert4rec: dim 64 and 200 events, on MovieLens-1M: run_ml-1m.sh and bert_train/bert_config_ml-1m_64.json of
  github.com/FeiSun/BERT4Rec.
"""
