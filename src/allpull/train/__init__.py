"""The reference trainer: ``loop`` reads top to bottom, ``evaluate``, ``optimise`` and ``checkpoint`` serve it.

It speaks to ``allpull.marks`` and is observed like any other script.
"""
