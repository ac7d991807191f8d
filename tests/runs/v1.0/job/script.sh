#!/bin/sh
# What allpull 0.1.0 started; to run it again: /home/user/.venv/bin/allpull train digits -n 2 --set train.epochs=2 --set data.limit=200 --set train.batch=10 --set name=kept --out /home/user/runs
export GLOO_SOCKET_IFNAME=lo
export MKL_NUM_THREADS=1
export OMP_NUM_THREADS=1
export PYTHONUNBUFFERED=1
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=15
exec /home/user/.venv/bin/python3 -m allpull.observe.agent /home/user/runs/20261121T002754Z_kept_n2_64457c3d/job/spec.json
