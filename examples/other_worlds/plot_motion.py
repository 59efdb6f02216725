"""
Moving pictures: a network that moves along
===========================================

The hidden state of ``flow_rnn`` has a copy for each velocity, which moves with it. A crab that walks at a listed
velocity is seen in its copy exactly as a crab at rest is seen in the copy at rest. A plain recurrent network, which
only has the copy at rest, sees something else.
"""

import matplotlib.pyplot as plt
import torch

from unpose.data import drawings
from unpose.motion import flow_rnn

torch.manual_seed(0)
crab = torch.from_numpy(drawings(45)[0]).mean(2)


def film(velocity):
    """Seven frames of a crab that walks by so many pixels a step: (1, 7, 1, 45, 45)."""
    return torch.stack([crab.roll(velocity * t, -1)[None] for t in range(7)])[None]


network = flow_rnn([(v, 0) for v in range(-3, 4)], n_out=5, width=3).eval()
with torch.no_grad():
    at_rest = network.states(film(0))[0, network.velocities.index((0, 0))].norm(dim=0)  # (45, 45)
    walking = network.states(film(3))[0]  # (7, 3, 45, 45): a copy for each velocity
moving_copy = walking[network.velocities.index((3, 0))].norm(dim=0)
resting_copy = walking[network.velocities.index((0, 0))].norm(dim=0)

# %%
# The copy that moves along is the copy at rest, moved to where the last frame is.
moved = at_rest.roll(18, -1)
along, plain = (float((copy - moved).norm() / moved.norm()) for copy in (moving_copy, resting_copy))
figure, axes = plt.subplots(2, 3, figsize=(5.5, 3.85), layout="constrained")
pictures = {
    "a film, 3 px a step": film(3)[0, 0, 0],
    "frame 4": film(3)[0, 3, 0],
    "frame 7": film(3)[0, 6, 0],
    "state of a crab at rest": at_rest,
    f"moving copy: error {along:.0%}": moving_copy,
    f"plain: error {plain:.0%}": resting_copy,
}
for axis, (name, image) in zip(axes.flat, pictures.items(), strict=True):
    is_state = image is at_rest or image is moving_copy or image is resting_copy
    axis.imshow(image, cmap="magma" if is_state else "gray")
    axis.set_title(name, fontsize=9)
    axis.axis("off")
plt.show()
