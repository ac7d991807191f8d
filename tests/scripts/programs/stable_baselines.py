"""Stable-Baselines3: PPO in four environments of the program's own, saved at the end."""

import time

import gymnasium
import numpy as np
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env


class Balance(gymnasium.Env):
    """Push a number back to zero; each push takes half a millisecond, as long as a small simulator."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state, self.pushes = self.np_random.normal(size=4).astype(np.float32), 0
        return self.state, {}

    def step(self, action):
        time.sleep(0.0005)
        self.state = self.state + np.float32(0.1 if action else -0.1)
        self.pushes += 1
        return self.state, -float(abs(self.state[0])), False, self.pushes == 40, {}


environments = make_vec_env(Balance, n_envs=4, seed=0)
model = PPO("MlpPolicy", environments, n_steps=64, batch_size=64, n_epochs=3, seed=0, device="cpu")
model.learn(total_timesteps=2 * 64 * 4)
model.save("saved")
print(model.num_timesteps, [value.sum().item().hex() for value in model.policy.parameters()])
