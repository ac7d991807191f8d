"""From the records of a run to its metrics: functions of columns, in float seconds.

``aligned`` puts the records of a run on one clock; everything else takes it. ``steps`` chooses the steps, arranges them
as step × rank and splits them into phases; ``collectives`` matches calls across ranks; ``io``, ``learning`` and
``probes`` each answer one question; ``statistics`` gives their intervals; ``run`` and ``scaling`` collect the results.
"""
