"""Facts by exact enumeration: a tiny softmax policy in a tiny environment, every trajectory summed, nothing sampled."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from loss_recipes import recipe, rl
from torch import Tensor

from tracemask import loss

A, B = 3, 2  # actions, observations
torch_f64 = torch.float64


def world() -> tuple[Tensor, Tensor, Tensor]:
    """Policy logits [1 + A·B contexts, A], the environment P(o | a) as logits [A, B], rewards [A, B, A]."""
    g = torch.Generator().manual_seed(5)
    policy = torch.randn(1 + A * B, A, generator=g, dtype=torch_f64)
    environment = torch.randn(A, B, generator=g, dtype=torch_f64)
    reward = 1 + torch.rand(A, B, A, generator=g, dtype=torch_f64)
    return policy, environment, reward


def expected(policy: Tensor, environment: Tensor, per_trajectory: Callable[[Tensor, float], Tensor]) -> Tensor:
    """Σ over trajectories (a1, o, a2) of P(trajectory) · per_trajectory([lp a1, lp o, lp a2], reward); P is fixed."""
    reward = world()[2]
    pi, env = torch.log_softmax(policy, -1), torch.log_softmax(environment, -1)
    total = torch.zeros((), dtype=torch_f64)
    for a1, o, a2 in itertools.product(range(A), range(B), range(A)):
        lp = torch.stack([pi[0, a1], env[a1, o], pi[1 + a1 * B + o, a2]])
        total = total + lp.sum().exp().detach() * per_trajectory(lp, float(reward[a1, o, a2]))
    return total


def true_gradient(policy: Tensor, environment: Tensor) -> Tensor:
    """−d E[reward] / d policy, by differentiating the probabilities themselves."""
    reward, live = world()[2], policy.clone().requires_grad_()
    pi, env = torch.softmax(live, -1), torch.softmax(environment, -1)
    second = pi[1:].reshape(A, B, A)
    value = torch.einsum("a,ao,aob,aob->", pi[0], env, second, reward)
    return -torch.autograd.grad(value, live)[0]


def surrogate(mask: list[int], baseline: float = 0.0) -> Callable[[Tensor, float], Tensor]:
    chosen = recipe(rl=rl("reinforce", "sum_per_rollout"))

    def per_trajectory(lp: Tensor, reward: float) -> Tensor:
        advantage = torch.tensor([reward - baseline], dtype=torch_f64)
        return loss.from_logprobs(chosen, lp, mask=torch.tensor(mask), advantages=advantage).total

    return per_trajectory


def grads(per_trajectory: Callable[[Tensor, float], Tensor]) -> tuple[Tensor, Tensor]:
    policy, environment, _ = world()
    policy, environment = policy.requires_grad_(), environment.requires_grad_()
    total = expected(policy, environment, per_trajectory)
    found = torch.autograd.grad(total, (policy, environment), allow_unused=True)
    return found[0], torch.zeros_like(environment) if found[1] is None else found[1]


def test_the_masked_reinforce_estimator_is_unbiased() -> None:
    policy, environment, _ = world()
    assert torch.allclose(grads(surrogate([1, 0, 1]))[0], true_gradient(policy, environment), atol=1e-12)


def test_masking_observations_leaves_the_policy_gradient_and_training_them_moves_the_environment_model() -> None:
    masked, untouched = grads(surrogate([1, 0, 1]))
    trained, moved = grads(surrogate([1, 1, 1]))
    # separate parameters: the environment's own log-prob does not depend on the policy, so its term drops out …
    assert torch.allclose(masked, trained, atol=1e-12)
    assert untouched.eq(0).all()
    # … and all that training it does is to push the model's observations towards lucky ones
    assert moved.abs().max() > 0.01


def test_a_baseline_leaves_the_expected_gradient_and_lowers_its_variance() -> None:
    policy, environment, reward = world()
    pi, env = torch.softmax(policy, -1), torch.softmax(environment, -1)
    mean = float(torch.einsum("a,ao,aob,aob->", pi[0], env, pi[1:].reshape(A, B, A), reward))
    plain, with_baseline = (grads(surrogate([1, 0, 1], b))[0] for b in (0.0, mean))
    assert torch.allclose(plain, with_baseline, atol=1e-12)
    assert spread(mean) < spread(0.0)


def spread(baseline: float) -> float:
    """E‖g‖² − ‖E g‖² of the single-trajectory estimate."""
    policy, environment, reward = world()
    step = surrogate([1, 0, 1], baseline)
    pi, env = torch.log_softmax(policy, -1), torch.log_softmax(environment, -1)
    second, mean = 0.0, torch.zeros_like(policy)
    for a1, o, a2 in itertools.product(range(A), range(B), range(A)):
        live = policy.clone().requires_grad_()
        table = torch.log_softmax(live, -1)
        lp = torch.stack([table[0, a1], env[a1, o], table[1 + a1 * B + o, a2]])
        (g,) = torch.autograd.grad(step(lp, float(reward[a1, o, a2])), live)
        p = float((pi[0, a1] + env[a1, o] + pi[1 + a1 * B + o, a2]).exp())
        second, mean = second + p * float(g.square().sum()), mean + p * g
    return second - float(mean.square().sum())


def test_a_near_certain_token_barely_moves() -> None:
    moves = []
    for margin in (0.0, 8.0):
        logits = torch.tensor([margin, 0.0, 0.0], dtype=torch_f64, requires_grad=True)
        lp = torch.log_softmax(logits, 0)[:1]
        out = loss.from_logprobs(recipe(rl=rl()), lp, advantages=torch.ones(1))
        moves.append(float(torch.autograd.grad(out.total, logits)[0].abs().max()))
    assert moves[0] == pytest.approx(2 / 3)
    assert moves[1] < 1e-3


V = 40


def distributions() -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    theta = torch.randn(V, generator=g, dtype=torch_f64)
    ref = torch.log_softmax(theta + 0.7 * torch.randn(V, generator=g, dtype=torch_f64), 0)
    old = torch.log_softmax(theta + 0.2 * torch.randn(V, generator=g, dtype=torch_f64), 0)
    return theta, ref, old


def kl_gradient(estimator: str, *, ratio: bool, off_policy: bool = False) -> Tensor:
    """Expected gradient of the penalty when each token is drawn from the policy (or from old), as the loss gives it."""
    theta, ref, old = distributions()
    live = theta.clone().requires_grad_()
    lp = torch.log_softmax(live, 0)
    drawn = old if off_policy else lp.detach()
    chosen = recipe(kl=rl("kl", "sum", estimator=estimator, through_ratio=ratio, compat=estimator == "k1"))
    out = loss.from_logprobs(chosen, lp, ref=ref, old=drawn, weights={"kl": drawn.exp()})
    return torch.autograd.grad(out.total, live)[0]


def exact(which: str) -> Tensor:
    theta, ref, _ = distributions()
    live = theta.clone().requires_grad_()
    lp = torch.log_softmax(live, 0)
    value = (lp.exp() * (lp - ref)).sum() if which == "reverse" else (ref.exp() * (ref - lp)).sum()
    return torch.autograd.grad(value, live)[0]


def apart(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


def test_plain_k1_in_the_loss_has_expected_gradient_zero() -> None:
    assert kl_gradient("k1", ratio=False).norm() < 1e-14
    assert exact("reverse").norm() > 0.05


def test_plain_k2_has_the_gradient_of_the_kl_to_the_reference() -> None:
    assert apart(kl_gradient("k2", ratio=False), exact("reverse")) < 1e-12


def test_plain_k3_has_the_gradient_of_the_kl_from_the_reference() -> None:
    assert apart(kl_gradient("k3", ratio=False), exact("forward")) < 1e-12
    assert apart(kl_gradient("k3", ratio=False), exact("reverse")) > 0.1


@pytest.mark.parametrize("off_policy", [False, True])
def test_times_the_live_ratio_k1_and_k3_have_the_gradient_of_the_kl_to_the_reference_and_k2_does_not(
    off_policy: bool,
) -> None:
    for estimator in ("k1", "k3"):
        assert apart(kl_gradient(estimator, ratio=True, off_policy=off_policy), exact("reverse")) < 1e-12
    assert apart(kl_gradient("k2", ratio=True, off_policy=off_policy), exact("reverse")) > 0.1


def test_the_mean_sampled_log_prob_has_no_entropy_gradient_and_the_entropy_term_has() -> None:
    theta, _, _ = distributions()
    live = theta.clone().requires_grad_()
    lp = torch.log_softmax(live, 0)
    naive = loss.from_logprobs(recipe(ce=rl("ce", "sum")), lp, weights={"ce": lp.detach().exp()}).total
    assert torch.autograd.grad(naive, live, retain_graph=True)[0].norm() < 1e-14
    full = -(lp.exp() * lp).sum()[None]
    out = loss.from_logprobs(recipe(entropy=rl("entropy", "sum")), lp[:1], entropy=full).total
    p, h = lp.exp().detach(), float(full.detach())
    expected_slope = p * (lp.detach() + h)  # of −H
    assert torch.allclose(torch.autograd.grad(out, live)[0], expected_slope, atol=1e-14)
