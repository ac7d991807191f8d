"""From the records of a run to its metrics: pure functions of columns, float seconds, no files and no clocks.

``steady`` chooses the steps, ``grid`` arranges them as step × rank, ``throughput``, ``phases``, ``io`` and
``learning`` each answer one question, ``statistics`` says how sure they are, ``run`` and ``summary`` collect.
"""
