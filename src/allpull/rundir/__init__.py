"""The run directory: the only place that knows its paths.

``layout`` names the files, ``write`` and ``redact`` (standard library) fill them, ``read`` gives columns.
"""
