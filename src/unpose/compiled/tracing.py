"""Detects tracing and ``torch.func`` transforms, under which the compiled kernels cannot be used."""

import torch


def is_transformed() -> bool:
    """Whether a ``torch.func`` transform (vmap, grad, jvp, ...) is active.

    The tensors inside a transform have no memory that a kernel could read, and an operator without a forward
    derivative silently contributes zeros.

    Returns
    -------
    bool

    Examples
    --------
    >>> is_transformed(), torch.func.vmap(lambda x: x + is_transformed())(torch.zeros(2)).tolist()
    (False, [1.0, 1.0])
    """
    return not torch.compiler.is_compiling() and torch._C._functorch.peek_interpreter_stack() is not None


def is_traced_or_transformed() -> bool:
    """Whether ``torch.compile``, ``torch.export`` or ``torch.jit`` traces, or a ``torch.func`` transform is active.

    Returns
    -------
    bool

    Examples
    --------
    >>> is_traced_or_transformed()
    False
    """
    return torch.compiler.is_compiling() or torch.jit.is_tracing() or is_transformed()
