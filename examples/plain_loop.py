"""Train a network of unpose in a plain PyTorch loop: it is an ordinary ``torch.nn.Module``.

    python examples/plain_loop.py [STEPS]

The same module goes into the training loop of any other library. In a ``LightningModule``, for example, create the
network in ``__init__`` and return the loss below from ``training_step``.
"""

import sys

import torch
from torch.nn.functional import cross_entropy

from unpose.nn import create_network

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 60
torch.manual_seed(0)

# Two classes of images (n, c, h, w): a bar and a cross, with noise. Put the tensors of your own data here.
images, labels = 0.3 * torch.randn(64, 1, 16, 16), torch.arange(64) % 2
images[:, :, 7:9, 3:13] += 1
images[labels == 1, :, 3:13, 7:9] += 1

network = create_network("group_cnn", group="c8", in_channels=1, n_classes=2, image_size=16, width=8)
optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
for _ in range(steps):
    batch = torch.randint(len(images), (16,))
    loss = cross_entropy(network(images[batch]), labels[batch])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

network.eval()
with torch.no_grad():
    upright, turned = (network(batch).argmax(1) for batch in (images, images.rot90(1, (2, 3))))
print(f"loss {loss.item():.3f}, accuracy {(upright == labels).float().mean():.2f}")
print(f"the same answer after a quarter turn: {(upright == turned).float().mean():.0%}")
