"""Whole networks, each built by one function and invariant to its group: ``registry`` lists them by name."""
