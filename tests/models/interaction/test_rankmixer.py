"""What a RankMixer is made of."""

import torch

from satrap.models import RankMixer
from tests.models.helpers import make_batch, make_schema


def test_pieces_of_the_input_become_tokens_and_their_mean_is_scored():
    torch.manual_seed(0)
    schema = make_schema(dims=(3, 4), numbers=1)
    model = RankMixer(schema, layers=1, tokens=3, width=6, hidden=[5])
    batch = make_batch(model, schema)
    flat = torch.cat([*batch.embeddings.values(), batch.numeric], dim=1)
    pieces = [flat[:, :3], flat[:, 3:6], flat[:, 6:]]  # 8 columns: 3, 3, 2
    tokens = torch.stack([p(x) for p, x in zip(model.project, pieces, strict=True)], dim=1)
    mean = model.blocks(tokens).mean(1)
    torch.testing.assert_close(model(batch), model.head(torch.relu(model.deep[0](mean))))


def test_the_number_of_weights_is_as_documented():
    schema = make_schema(dims=(1024,), numbers=0)
    with torch.device("meta"):
        model = RankMixer(schema, layers=2, tokens=32, width=1536)
    blocks = sum(p.numel() for p in model.blocks.parameters())
    assert abs(blocks / (2 * 4 * 2 * 32 * 1536**2) - 1) < 0.01
    assert round(blocks / 1e9, 1) == 1.2
