"""The user's configuration, checked before anything starts.

``typed`` turns a plain dictionary into a specification or reports every fault in it, ``checks`` compares options,
``load`` reads a recipe with its overrides. The shipped recipes are in ``recipes/``.
"""
