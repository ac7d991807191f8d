#!/bin/sh
# Made by allpull 0.1.0 for: /home/user/allpull/src/allpull/__main__.py run -n 2 --out runs --trace every=30,steps=2 --set observe.counter_interval_s=0.2 -- kept.py
export MKL_NUM_THREADS=1
export OMP_NUM_THREADS=1
export PYTHONUNBUFFERED=1
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=15
exec /home/user/.venv/bin/python -m allpull.observe.agent /home/user/runs/20261122T195314Z_kept_n2_d4a2215d/job/spec.json --port 0
