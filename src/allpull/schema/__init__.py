"""Every record that crosses a stage, typed and versioned.

``base`` says what a version is, ``spec`` what a user may request, ``run``, ``host``, ``steps``, ``events`` and
``counters`` what a run directory holds, ``results`` what analysis answers, ``document`` makes JSON Schema of it.
"""
