"""Networks and functions with one planted defect each, and the same without it: what ``audit_defects.py`` measures.

========================= ===========================================================================================
``developed.py``          how a case is described and built; ``DEVELOPED``, on which rules were chosen, and ``KEPT``
``further.py``            ``FURTHER``: defects of other kinds
``last.py``               ``LAST`` and ``TAUGHT``
``unseen.py``             ``UNSEEN``: written without knowledge of the rules
``group_networks.py``     the group convolutions that these networks are made of
``released_attention.py`` the attention layer of the paper's released code, for ``audit_released.py``
========================= ===========================================================================================
"""
