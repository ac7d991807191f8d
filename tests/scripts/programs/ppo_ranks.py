"""PPO in the manner of CleanRL's multi-process script: gradients added up by the program itself, in one all_reduce."""

import atexit
import time

import gymnasium
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributions import Categorical

ITERATIONS, STEPS, ENVIRONMENTS, MINIBATCHES, EPOCHS = 3, 32, 4, 4, 2


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


class Agent(nn.Module):
    """Actor and critic, which the program calls one by one."""

    def __init__(self):
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 1))
        self.actor = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))

    def act(self, x, action=None):
        chances = Categorical(logits=self.actor(x))
        action = chances.sample() if action is None else action
        return action, chances.log_prob(action), chances.entropy(), self.critic(x)


atexit.register(time.sleep, 0.2)  # Gloo's threads may need Python once more, and abort if it is on its way out
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(1)
agent = Agent()
torch.manual_seed(1 + rank)
rng = np.random.default_rng(1 + rank)
optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
environments = gymnasium.vector.SyncVectorEnv([Balance] * ENVIRONMENTS)
batch = STEPS * ENVIRONMENTS
seen = torch.zeros(STEPS, ENVIRONMENTS, 4)
actions, chances, rewards, ended, values = torch.zeros(5, STEPS, ENVIRONMENTS)
observation = torch.tensor(environments.reset(seed=1 + rank)[0])
done = torch.zeros(ENVIRONMENTS)
losses = []
for _ in range(ITERATIONS):
    for step in range(STEPS):
        seen[step], ended[step] = observation, done
        with torch.no_grad():
            action, chances[step], _, value = agent.act(observation)
        actions[step], values[step] = action, value.flatten()
        observed, reward, terminated, truncated, _ = environments.step(action.numpy())
        rewards[step] = torch.tensor(reward)
        observation = torch.tensor(observed)
        done = torch.tensor(terminated | truncated, dtype=torch.float32)
    advantages, last = torch.zeros_like(rewards), 0.0
    with torch.no_grad():
        following = agent.critic(observation).flatten()
    for step in reversed(range(STEPS)):
        alive = 1 - (done if step == STEPS - 1 else ended[step + 1])
        coming = following if step == STEPS - 1 else values[step + 1]
        error = rewards[step] + 0.99 * coming * alive - values[step]
        advantages[step] = last = error + 0.99 * 0.95 * alive * last
    returns = advantages + values
    x, a, old, gain, target = seen.flatten(0, 1), *(one.flatten() for one in (actions, chances, advantages, returns))
    for _ in range(EPOCHS):
        for part in rng.permutation(batch).reshape(MINIBATCHES, -1):
            _, new, entropy, value = agent.act(x[part], a.long()[part])
            ratio = (new - old[part]).exp()
            policy = torch.max(-gain[part] * ratio, -gain[part] * ratio.clamp(0.8, 1.2)).mean()
            loss = policy - 0.01 * entropy.mean() + 0.25 * (value.flatten() - target[part]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            gradients = torch.cat([parameter.grad.flatten() for parameter in agent.parameters()])
            dist.all_reduce(gradients)
            place = 0
            for parameter in agent.parameters():
                parameter.grad.copy_(
                    gradients[place : place + parameter.numel()].view_as(parameter) / dist.get_world_size()
                )
                place += parameter.numel()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
            losses.append(loss.item())
if rank == 0:
    print([loss.hex() for loss in losses])
dist.destroy_process_group()
