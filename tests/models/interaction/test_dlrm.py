"""The network against its formula."""

import torch

from satrap.models import DLRM
from tests.models.helpers import make_batch, make_schema
from tests.models.plain import explicit_pairs


def test_model_equals_its_formula():
    torch.manual_seed(0)
    schema = make_schema()
    model = DLRM(schema, hidden=[9], bottom=[4])
    batch = make_batch(model, schema)
    dense = torch.relu(model.bottom[2](torch.relu(model.bottom[0](batch.numeric))))
    pairs = explicit_pairs(torch.stack([dense, *batch.embeddings.values()], dim=1))
    top = torch.relu(model.top[0](torch.cat([dense, pairs], dim=1)))
    torch.testing.assert_close(model(batch), model.head(top))
