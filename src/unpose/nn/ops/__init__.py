"""Operators of the layers that have kernels: each file is one operator, with its autograd and fake functions.

``dispatch.py`` chooses between PyTorch operations and the kernels in ``cpu`` (numba) and ``cuda`` (Triton), and says
how to add a backend. ``attention.py``, ``norm.py``, ``pointwise.py`` and ``encoding.py`` are the operators,
``reference`` has group attention in PyTorch operations, ``autocast.py`` the types under ``torch.autocast``. Operators
take tensors and import no layer.
"""
