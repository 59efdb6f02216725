"""Sequences of images: recurrent networks that do not depend on how fast things move.

=========== =========================================================================================================
``flow.py`` :func:`flow_rnn`: one hidden copy for each velocity, moved at every step
=========== =========================================================================================================
"""

from unpose.motion.flow import FlowRNN, flow_rnn

__all__ = ["FlowRNN", "flow_rnn"]
