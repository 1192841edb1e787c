"""Train the click model of plain.py with Lightning, and continue from its checkpoint.

    pip install lightning
    python examples/own_loop/with_lightning.py [FOLDER]

Two optimizers need manual optimization in Lightning. The rows are saved at the end of an epoch, before
Lightning's checkpoint, which refers to them.
"""

import sys
import tempfile
from pathlib import Path

import lightning
import torch
from plain import ClickModel, collate, loss_of, make_rows, optimizers_of
from torch.utils.data import DataLoader


class LitClicks(lightning.LightningModule):
    """The click model, its optimizers and its steps."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.model, self.folder = ClickModel(), folder

    def configure_optimizers(self) -> list:
        return optimizers_of(self.model)

    def training_step(self, batch: dict, number: int) -> None:
        self.manual_backward(loss_of(self.model, batch))
        for optimizer in self.optimizers():
            optimizer.step()
            optimizer.zero_grad()

    def validation_step(self, batch: dict, number: int) -> None:
        self.log("loss", loss_of(self.model, batch), batch_size=len(batch["clicked"]))

    def on_train_epoch_end(self) -> None:
        self.model.embeddings.save(str(self.folder / f"rows-{self.current_epoch}"))


def main(folder: Path) -> tuple[float, float]:
    rows = make_rows()
    loader = DataLoader(rows[:3600], batch_size=64, shuffle=True, collate_fn=collate)
    test = DataLoader(rows[3600:], batch_size=64, collate_fn=collate)

    def trainer(epochs: int) -> lightning.Trainer:
        return lightning.Trainer(
            max_epochs=epochs,
            accelerator="cpu",
            default_root_dir=folder,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )

    torch.manual_seed(0)
    module, first = LitClicks(folder), trainer(epochs=2)
    first.fit(module, loader, test)
    [before] = first.validate(module, test, verbose=False)
    checkpoint = first.checkpoint_callback.best_model_path

    again, second = LitClicks(folder), trainer(epochs=3)
    [loaded] = second.validate(again, test, ckpt_path=checkpoint, verbose=False)
    second.fit(again, loader, test, ckpt_path=checkpoint)
    [after] = second.validate(again, test, verbose=False)
    print(f"test {before['loss']:.4f}, loaded {loaded['loss']:.4f}, an epoch later {after['loss']:.4f}")
    for each in (module, again):
        each.model.embeddings.close()
    return before["loss"], loaded["loss"]


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else Path(tempfile.mkdtemp()))
