"""Reinforcement learning: what a program collects to learn from is a rollout, never an evaluation."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.observe.hooks.conftest import Watch

pytestmark = [pytest.mark.torch, pytest.mark.slow]

PPO = """
import sys
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        self.actor = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))

    def act(self, x, action=None):
        chances = Categorical(logits=self.actor(x))
        action = {choose} if action is None else action
        return action, chances.log_prob(action), self.critic(x)

class Environment:
    def step(self, action):
        return np.random.rand(4, 4).astype(np.float32), (action == 1).astype(np.float32)

{environment}
agent = Agent()
optimizer = torch.optim.Adam(agent.parameters())
observation = torch.zeros(4, 4)
for iteration in range(4):
    seen, actions, chances, rewards = [], [], [], []
    for _ in range(8):
        with torch.no_grad():
            action, chance, _ = agent.act(observation)
        seen.append(observation)
        observed, reward = environment.step(action.numpy())
        observation = torch.from_numpy(observed)
        actions.append(action)
        chances.append(chance)
        rewards.append(torch.from_numpy(reward))
    x, a, old, r = map(torch.cat, (seen, actions, chances, rewards))
    for epoch in range(2):
        for part in torch.randperm(32).split(16):
            _, new, value = agent.act(x[part], a[part])
            loss = -((new - old[part]).exp() * r[part]).mean() + (value.flatten() - r[part]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
"""
"""PPO in the structure of CleanRL: it calls parts of its network, and no ``eval()``."""

OWN = "environment = Environment()"


def gymnasium_in(site: Path) -> Path:
    """``site``, with the one class of gymnasium that these programs need."""
    (site / "gymnasium").mkdir()
    (site / "gymnasium" / "__init__.py").write_text("from gymnasium.core import Wrapper\n")
    (site / "gymnasium" / "core.py").write_text(
        "class Wrapper:\n"
        "    def __init__(self, env): self.env = env\n"
        "    def step(self, action): return self.env.step(action)\n"
    )
    return site


def test_actions_that_are_drawn_make_a_rollout(watched: Watch) -> None:
    run = watched(PPO.replace("{choose}", "chances.sample()").replace("{environment}", OWN))
    assert (run.code, run.err) == (0, "")
    steps = run.steps()
    assert len(steps) == 4 * 4
    assert [step.step for step in steps if (step.named or {}).get("rollout")] == [4, 8, 12]
    assert all(set(step.named or {}) <= {"rollout"} for step in steps)  # the environment is not known
    assert [step.samples for step in steps[1:]] == 15 * [16]
    assert all(step.forward_ns and step.backward_ns for step in steps[1:])
    assert not run.events("span")
    assert not any(step.evaluation_ns for step in steps)


def test_environments_of_a_package_are_timed_from_the_first_on(
    watched: Watch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    site = gymnasium_in(tmp_path_factory.mktemp("site"))
    environment = "import gymnasium\nenvironment = gymnasium.Wrapper(gymnasium.Wrapper(Environment()))"
    source = PPO.replace("{choose}", "chances.logits.argmax(1)").replace("{environment}", environment)
    run = watched(source, PYTHONPATH=str(site))
    assert (run.code, run.err) == (0, "")
    steps = run.steps()
    assert [step.step for step in steps if (step.named or {}).get("rollout")] == [0, 4, 8, 12]
    assert [step.step for step in steps if (step.named or {}).get("environment")] == [0, 4, 8, 12]
    assert not run.events("span")


def test_other_passes_without_gradients_stay_evaluation(watched: Watch) -> None:
    run = watched(PPO.replace("{choose}", "chances.logits.argmax(1)").replace("{environment}", OWN))
    steps = run.steps()
    assert [step.step for step in steps if step.evaluation_ns] == [4, 8, 12]
    assert not any(step.named for step in steps)


ACTOR_AND_CRITIC = """
import gymnasium
import numpy as np
import torch
from torch import nn
from torch.distributions import Normal

class Environment:
    def step(self, action):
        return np.random.rand(4).astype(np.float32), float(action)

def policy(x):
    return Normal(actor(x), heat.exp())

torch.manual_seed(0)
environment = gymnasium.Wrapper(Environment())
actor, critic, heat = nn.Linear(4, 1), nn.Linear(5, 1), nn.Parameter(torch.zeros(1))
optimizers = [torch.optim.Adam(one) for one in ([heat], critic.parameters(), actor.parameters())]
observation = torch.zeros(4)
seen = []
for iteration in range(12):
    with torch.no_grad():
        action = policy(observation).sample()
    observed, reward = environment.step(action.numpy()[0])
    observation = torch.from_numpy(observed)
    seen.append(observation)
    if iteration < 4:
        continue
    x = torch.stack([seen[number] for number in torch.randint(len(seen), (16,))])
    actions = policy(x).rsample()
    first = (heat * actions.detach()).mean()
    optimizers[0].zero_grad()
    first.backward()
    optimizers[0].step()
    with torch.no_grad():
        goal = critic(torch.cat([x, policy(x).sample()], 1)) + 1
    second = (critic(torch.cat([x, actions.detach()], 1)) - goal).square().mean()
    optimizers[1].zero_grad()
    second.backward()
    optimizers[1].step()
    third = -critic(torch.cat([x, actor(x)], 1)).mean()
    optimizers[2].zero_grad()
    third.backward()
    optimizers[2].step()
    print(iteration, second.item())
"""
"""One step of each update of SAC: three optimizers, and a goal that is computed without gradients between them."""


def test_goals_without_gradients_between_optimizers_are_no_rollout(
    watched: Watch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    site = gymnasium_in(tmp_path_factory.mktemp("site"))
    run = watched(ACTOR_AND_CRITIC, PYTHONPATH=str(site))
    assert (run.code, run.err) == (0, "")
    steps = run.steps()
    assert len(steps) == 8
    assert [step.backward_passes for step in steps] == 8 * [3]
    assert [step.samples for step in steps[1:]] == 7 * [16]
    assert all((step.named or {}).get("rollout") and (step.named or {}).get("environment") for step in steps)
    assert not run.events("span")
