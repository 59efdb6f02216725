"""The operators in plain PyTorch operations: any device, derivatives of any order, the reference in tests."""
