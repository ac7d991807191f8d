"""What the user asked for, checked before anything starts.

``typed`` turns a plain dictionary into a specification or says every fault in it, ``checks`` looks across fields,
``load`` reads a recipe with its overrides. The recipes that ship stand in ``recipes/``.
"""
