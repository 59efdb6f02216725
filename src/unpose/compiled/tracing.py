"""Who follows the operations: compiled loops serve numbers, not what stands for them."""

import torch


def is_transformed() -> bool:
    """Whether a transform of ``torch.func`` (vmap, grad, jvp, ...) is at work.

    Its tensors have no memory of their own, and through an operator without forward derivatives it finds zeros.
    """
    return not torch.compiler.is_compiling() and torch._C._functorch.peek_interpreter_stack() is not None


def is_followed() -> bool:
    """Whether a transform is at work, or ``torch.compile`` or ``torch.export`` traces."""
    return torch.compiler.is_compiling() or is_transformed()
