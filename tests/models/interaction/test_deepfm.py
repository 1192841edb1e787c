"""DeepFM against a factorization machine and an MLP that share the vectors."""

import torch

from satrap.models import FM, DeepFM
from tests.models.helpers import make_batch, make_schema
from tests.models.plain import randomise


def test_it_is_a_factorization_machine_plus_an_mlp():
    torch.manual_seed(0)
    schema = make_schema()
    deepfm, fm = DeepFM(schema, hidden=[7]), FM(schema)
    randomise(deepfm)
    fm.load_state_dict({k: v for k, v in deepfm.state_dict().items() if k.startswith(("first", "second"))})
    batch = make_batch(fm, schema)
    inputs = torch.cat([*(rows[:, :8] for rows in batch.embeddings.values()), batch.numeric], dim=1)
    linear = deepfm.deep[0]
    deep = torch.relu(inputs @ linear.weight.T + linear.bias) @ deepfm.head.weight.T
    torch.testing.assert_close(deepfm(batch), fm(batch) + deep, rtol=1e-4, atol=1e-4)
