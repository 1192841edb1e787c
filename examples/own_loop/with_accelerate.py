"""Train the click model of plain.py with accelerate: gradients of two batches a step, and its checkpoint.

    pip install accelerate
    python examples/own_loop/with_accelerate.py [FOLDER]

One process trains; `accelerate launch` with several is refused.
"""

import sys
import tempfile
from pathlib import Path

import torch
from accelerate import Accelerator
from plain import ClickModel, collate, evaluate, loss_of, make_rows, optimizers_of
from torch.utils.data import DataLoader


def main(folder: Path) -> tuple[float, float]:
    rows = make_rows()
    loader = DataLoader(rows[:3600], batch_size=32, shuffle=True, collate_fn=collate)
    test = DataLoader(rows[3600:], batch_size=64, collate_fn=collate)

    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = ClickModel()
    model, loader, *optimizers = accelerator.prepare(model, loader, *optimizers_of(model))
    for epoch in range(3):
        model.train()
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(loss_of(model, batch))
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad()
        print(f"epoch {epoch}: test {evaluate(model, test):.4f}, {model.embeddings.steps} steps")

    model.embeddings.save(str(folder / "rows"))  # first the rows: the state refers to them
    accelerator.save_state(str(folder / "state"))
    before = evaluate(model, test)
    model.embeddings.close()

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    again = ClickModel()
    again, *optimizers = accelerator.prepare(again, *optimizers_of(again))
    accelerator.load_state(str(folder / "state"))
    after = evaluate(again, test)
    print(f"loaded: test {after:.4f}")
    again.embeddings.close()
    return before, after


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else Path(tempfile.mkdtemp()))
