"""Stable-Baselines3: SAC, whose three optimizers learn from the same samples of its replay buffer."""

import gymnasium
import torch
from stable_baselines3 import SAC

torch.manual_seed(0)
small = {"net_arch": [16, 16]}
model = SAC("MlpPolicy", gymnasium.make("Pendulum-v1"), seed=0, device="cpu", learning_starts=40, policy_kwargs=small)
model.learn(64)
model.save("saved")
print(model._n_updates, [float(one.sum()).hex() for one in model.policy.parameters()])
