"""One rank of ``allreduce_table.py``: all-reduces of one size, timed; the times go to this rank's log as JSON.

The size in bytes and the number of timed repeats come in ALL_REDUCE_BYTES and ALL_REDUCE_REPEATS.
"""

from __future__ import annotations

import json
import os
import time

import torch
import torch.distributed as dist

WARM_UP = 2  # the first finds connections cold and windows small

if __name__ == "__main__":
    dist.init_process_group("gloo")
    values = torch.ones(int(os.environ["ALL_REDUCE_BYTES"]) // 4)
    times_s = []
    for _ in range(WARM_UP + int(os.environ["ALL_REDUCE_REPEATS"])):
        dist.barrier()
        start_s = time.perf_counter()
        dist.all_reduce(values)
        times_s.append(time.perf_counter() - start_s)
    print(json.dumps(times_s[WARM_UP:]))
    dist.destroy_process_group()
