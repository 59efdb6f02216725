"""Networks whose weights hide no error."""

import torch
from torch import nn


def contrasted(module, seed=7, gain=2.0):
    """Enlarge the weights of a module and draw its constants and running statistics; return it in evaluation mode.

    At initialisation attention is nearly uniform, biases are zero and norms do nothing, so that errors of equivariance
    would be too small to be seen.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator).to(parameter)
            parameter.copy_(parameter + 0.5 * noise if parameter.ndim <= 1 else gain * parameter)
        for norm in module.modules():
            if isinstance(getattr(norm, "running_mean", None), torch.Tensor):
                norm.running_mean += 0.5 * torch.randn(norm.running_mean.shape, generator=generator).to(
                    norm.running_mean
                )
                norm.running_var *= 1 + torch.rand(norm.running_var.shape, generator=generator).to(norm.running_var)
    return module.eval()


def contrasted_sequence(*modules, seed=7, gain=2.0):
    """:func:`contrasted` of modules one after the other."""
    return contrasted(nn.Sequential(*modules), seed, gain)
