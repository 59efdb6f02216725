"""
Train with Lightning
====================

A network of ``unpose`` is an ordinary module inside a ``LightningModule``. The loss belongs to the data and not to the
network, so masks and vectors are trained in the same way: create the network with ``head="mask"`` or
``head="vectors"`` and change the loss. Lightning is not installed where this site is built, so the example is not run
there; run it yourself:

.. code-block:: console

   pip install lightning
   python examples/learn/lightning_module.py [STEPS]
"""

import sys

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from unpose.nn import create_network

try:
    import lightning as L
except ImportError:
    import pytorch_lightning as L


class Classifier(L.LightningModule):
    """Cross-entropy, AdamW, and the share of images whose answer does not change under a quarter turn."""

    def __init__(self, network: str = "group_cnn", learning_rate: float = 1e-2, **options):
        super().__init__()
        self.save_hyperparameters()
        self.network = create_network(network, **options)

    def forward(self, images):
        return self.network(images)

    def training_step(self, batch, index):
        images, labels = batch
        loss = cross_entropy(self(images), labels)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, index):
        images, labels = batch
        upright, turned = (self(each).argmax(1) for each in (images, images.rot90(1, (2, 3))))
        self.log("accuracy", (upright == labels).float().mean())
        self.log("same after a quarter turn", (upright == turned).float().mean())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.learning_rate)


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    L.seed_everything(0, verbose=False)
    # Two classes of images (n, c, h, w): a bar and a cross, with noise. Put the tensors of your own data here.
    images, labels = 0.3 * torch.randn(64, 1, 16, 16), torch.arange(64) % 2
    images[:, :, 7:9, 3:13] += 1
    images[labels == 1, :, 3:13, 7:9] += 1
    data = TensorDataset(images, labels)
    model = Classifier(group="c8", in_channels=1, n_classes=2, image_size=16, width=8)
    trainer = L.Trainer(
        max_steps=steps, logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False
    )
    trainer.fit(model, DataLoader(data, batch_size=16, shuffle=True))
    (measured,) = trainer.validate(model, DataLoader(data, batch_size=64), verbose=False)
    print(f"accuracy {measured['accuracy']:.2f}")
    print(f"the same answer after a quarter turn: {measured['same after a quarter turn']:.0%}")


if __name__ == "__main__":
    main()

# sphinx_gallery_thumbnail_path = 'pictures/learn.png'
