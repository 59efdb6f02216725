"""Triton kernels for CUDA; every file begins with its algorithm.

``attention.py`` launches the kernels in ``attention_kernels.py``, which inline ``scores.py`` (scores and their
gradients), ``neighbourhood.py`` (addressing) and ``packed.py`` (pairs of half-precision numbers);
``position_tables.py`` has the gradients of position tables. ``norm.py``, ``pointwise.py`` and ``encoding.py`` are the
kernels of one operator each, ``reduce.py`` the deterministic sum over programs.
"""
