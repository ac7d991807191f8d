"""The reference trainer: ``loop`` reads top to bottom; the folders hold its parts.

It reports through ``allpull.marks`` and is observed like any other script.
"""
