"""Every hyper-parameter, with its meaning and its source.

Sources: P the paper says so; C the CDT code that the paper builds on; Q the Q-regularised
transformer (QT); I our inference. `docs/decisions.md` gives the reasons.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rcdt_agent.base_config import BASE_RULES, BaseConfig, Rule, check_fields, one_of

Weighting = Literal["none", "return_cost", "expert", "frontier"]
Sampling = Literal["trajectory", "transition", "cost_tilted"]
KappaMode = Literal["critic", "episode", "token", "data"]
TokenShape = Literal["linear", "asinh"]
TimeEmbedding = Literal["none", "position", "fourier", "learned"]
CriticInputs = Literal["state", "token"]
CriticTargets = Literal["monte_carlo", "td"]


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Settings of one agent. Make one with `make_config`; change one with `dataclasses.replace`."""

    variant: str = "wcdt"
    """Components: dt, qt, rdt, rvdt, cdt, wdt, wqdt (tvcdt), wcdt, qcdt or rcdt (P); with `-paper`
    after it, everything else too is the paper's literal reading (`variants.PAPER`)."""

    # Components (Tables 1 and 5 of the paper).
    cost_token: bool = True
    """Condition on cost-to-go (P). Off: a plain return-conditioned Decision Transformer."""
    return_token: bool = False
    """Condition on return-to-go (P: on). Off: the policy returns what the weights favour, so they
    must favour high returns, as `frontier` does (I)."""
    weighting: Weighting = "frontier"
    """W: by how close a step's return-to-go comes to the best at its cost-to-go token (I), Eq.
    (w-def), 1 + alpha on the expert subset (Prop. 1), or none."""
    q_guidance: bool = False
    """The term - eta Q in the policy loss (P: on)."""
    cost_penalty: bool = True
    """The term + lambda C in the policy loss, with dual ascent of lambda (P)."""

    # Policy network.
    n_layers: int = 3
    """Transformer blocks (P)."""
    n_heads: int = 8
    """Attention heads (P)."""
    embedding_size: int = 128
    """Width of the transformer; a multiple of `n_heads` (P)."""
    context_length: int = 10
    """K, steps the policy looks back on, the present one included (P)."""
    dropout: float = 0.1
    """On embeddings and residual branches (P)."""
    attention_dropout: float = 0.1
    """On attention weights (P: one figure for all; C applies it here too)."""
    action_token: bool = False
    """Condition on past actions (P: on). Off, the policy cannot copy its own last action (I)."""
    head_width: int = 256
    """Hidden units of the action head, which also reads the present state and tokens as they are;
    0: a linear head on the transformer's output alone (P). (I)"""
    state_dependent_std: bool = False
    """Whether the Gaussian's deviation depends on the state (P) or is one for all (I)."""
    log_std_range: tuple[float, float] = (-5.0, 2.0)
    """Bounds of the Gaussian head's log standard deviation (I)."""
    time_embedding: TimeEmbedding = "position"
    """What tells steps apart: a learned embedding of their place in the context, since tokens hold
    rates per step left (I), smooth Fourier features of the step of the episode (I), or a learned
    row for each step of the episode (P). `none`: one block cannot tell in which order it saw them
    (I)."""
    image_features: int = 64
    """Numbers that a convolutional encoder makes of an image, for policy and critics each; other
    observations have no encoder (I)."""
    normalize_observations: bool = True
    """Shift and scale each observation dimension by the dataset's mean and deviation (I)."""
    rtg_scale: float | None = None
    """RTG token = RTG / scale. None: the dataset's range of returns (C: 10)."""
    ctg_scale: float | None = None
    """CTG token = CTG / scale. None: the cost limit of the weights (C: 1, and 50 - CTG)."""
    ctg_shape: TokenShape = "asinh"
    """`asinh` resolves small budgets among large costs, `linear` is C's (I)."""
    token_rates: bool = True
    """Tokens also hold what is to go per step left of the episode (I; P: they do not)."""

    # Data.
    sampling: Sampling = "transition"
    """Uniform over transitions (I), over trajectories (P), or tilted to low cost (C)."""
    cost_ceiling: float = 70.0
    """For `cost_tilted`: probability proportional to max(0, ceiling - cost) (C)."""
    pareto_fraction: float = 0.0
    """Share of windows relabelled towards the frontier; C uses 0.2, off here (I)."""
    pareto_increase: float = 0.1
    """Largest increase of the relabelled return, as a share of the range of returns (I)."""

    relabel_fraction: float = 0.5
    """Share of windows whose CTG gains a random slack, so that the token means "at most" (I;
    P: 0)."""

    # Weights.
    frontier_sharpness: float = 8.0
    """For `frontier`: W = exp(sharpness (u - 1)), u = 1 at the best return-to-go of the data at a
    cost-to-go of at most the token's, 0 at the median (I)."""
    alpha: float = 1.0
    """Sensitivity of W to the scaled return, or the expert subset's extra weight (I)."""
    gamma: float = 0.1
    """Sensitivity of W to cost, per unit of cost (I)."""
    cost_limit: float | None = None
    """c_lim of W. None: the suite's middle budget, or the median cost without a task (I)."""
    max_weight: float = 10.0
    """W is divided by its mean under the sampler, then clipped here (I)."""
    weight_floor: float = 0.2
    """Smallest W after that: no trajectory is left to the critic terms alone (I; P: 0)."""
    expert_fraction: float = 0.1
    """Share of trajectories, by return, in the expert subset of `rdt` and `rvdt` (I)."""

    # Optimisation of the policy: AdamW.
    micro_batch_size: int | None = None
    """Windows of one forward and backward pass; gradients accumulate over the batch. None: what
    fits a CPU's cache, and the whole batch on other devices; 0: always the whole batch (I)."""
    weight_decay: float = 1e-4
    """(C; P: Adam, which 0 gives)"""
    warmup_steps: int = 500
    """Linear warm-up of the learning rate (C)."""
    adam_betas: tuple[float, float] = (0.9, 0.999)
    """(P)"""
    max_grad_norm: float = 0.25
    """Gradient clipping (P)."""
    ema_decay: float = 0.998
    """The policy acts with an exponential moving average of its weights (I); 0: with the last
    (P)."""
    entropy_bonus: bool = False
    """Entropy with a learnt temperature (C: on). The paper's objective has none."""
    initial_temperature: float = 0.1
    """(C)"""
    cost_head_weight: float = 0.0
    """Weight of an auxiliary head that predicts whether a step costs; C uses 0.02, off here (I)."""

    # Critics.
    critic_layers: int = 4
    """Linear layers (P)."""
    critic_width: int = 128
    """Hidden units (P)."""
    critic_learning_rate: float = 5e-5
    """Adam (P)."""
    critic_max_grad_norm: float = 0.25
    """Gradient clipping (P)."""
    critic_targets: CriticTargets = "monte_carlo"
    """`monte_carlo`: critics are fitted to the discounted sums along recorded trajectories, from
    the first step of training on (I). `td`: to bootstrapped targets at the policy's own next
    actions, from `critic_start` on (P)."""
    critic_inputs: CriticInputs = "state"
    """`state`: Q(s, a) and C(s, a) (P). `token`: they also see the cost-to-go and the time (I)."""
    target_rate: float | None = None
    """Soft update of the target networks; P: 0.01. None: that, or more where training is too short
    for it to converge (I)."""
    discount: float = 0.95
    """Of the reward critic: a longer sum is noise to a critic that is fitted to recordings (I; with
    `-paper`: 0.99)."""
    cost_discount: float = 0.95
    """Of the cost critic: how far ahead an action is held to account (I; with `-paper`: 0.99)."""
    target_pessimism: float = 0.0
    """How far TD targets lean from the twins' mean, in units of their difference: 0 takes the mean
    (I), 0.5 the smaller twin of Q, as double Q-learning does, and the larger of C (P)."""
    cost_pessimism: float = 0.5
    """The same where a cost is used: in the penalty and the shield (I)."""
    held_out_fraction: float = 0.1
    """Share of trajectories that the critics are never trained on: their error there is logged, and
    a critic term waits until its critic is better than a constant (I; P: 0, no check)."""
    critic_start: float = 0.25
    """Share of training after which TD critics, critic terms and lambda begin (P: 50k of 200k)."""

    # Critic terms of the policy loss.
    sampled_actions: bool = False
    """Critic terms judge an action drawn from the policy (P), or its mean, which is what a
    deterministic agent does (I)."""
    eta: float = 0.1
    """Coefficient of Q guidance; grid {0.1, 0.3, 0.5} (P)."""
    kappa: float = 10.0
    """Reference cost level of dual ascent (P)."""
    kappa_mode: KappaMode = "data"
    """What J_c and kappa are. `data`: J_c is what actions are expected to cost beyond what their
    tokens have left, kappa a share of the same of recorded actions (I). `token`: kappa is what each
    step's token allows at an even pace (I). `critic`: kappa is compared with the critic's mean (P).
    `episode`: with an episode's cost (I)."""
    kappa_share: float = 0.85
    """For `data`: kappa as a share of the J_c of recorded actions (I)."""
    lambda_step: float = 0.1
    """Step of dual ascent, of J_c / kappa - 1 for `data` (I); with `-paper`: 3e-4 (P)."""
    lambda_max: float = 30.0
    """Cap of lambda (I)."""

    # Deployment.
    budget_margin: float = 0.1
    """Share of the budget held back: the cost-to-go token asks for the rest (I; P: 0)."""
    ctg_floor: float | None = None
    """Smallest CTG token at deployment; None lets it go below zero (C)."""
    target_quantile: float = 0.99
    """Quantile of returns within the budget that `target_return="auto"` asks for (I)."""
    cautious_quantile: float | None = 0.5
    """With `replan`, the return asked for falls towards this quantile as the episode spends ahead
    of an even pace, and is there when the budget is spent; None: it does not (I)."""
    replan: bool = True
    """Never ask for more than the data show at this step with what is left of the budget (I)."""
    exhausted_mode: bool = True
    """Once the budget is spent: CTG 0, and the data's return at no cost (I)."""
    shield_candidates: int = 0
    """Actions the critic shield chooses from when the policy's own does not fit; 0: none (I)."""

    def __post_init__(self) -> None:
        """Refuse values outside their rules before anything is trained."""
        check_fields(self, {**BASE_RULES, **_RULES})

    @property
    def critic_signals(self) -> tuple[str, ...]:
        """What the critics of the terms that act estimate: reward, cost."""
        return ("reward",) * self.q_guidance + ("cost",) * self.cost_penalty

    @property
    def uses_critics(self) -> bool:
        """Whether any critic term acts."""
        return bool(self.critic_signals)


_RULES: dict[str, Rule] = {
    "n_layers n_heads embedding_size context_length critic_width image_features": (
        lambda v, _: v >= 1,
        ">= 1",
    ),
    "head_width": (lambda v, _: v >= 0, ">= 0"),
    "return_token": (lambda v, c: v or c.cost_token, "on without `cost_token`"),
    "critic_layers": (lambda v, _: v >= 2, ">= 2"),
    "micro_batch_size": (lambda v, _: v is None or v >= 0, ">= 0 or None"),
    "kappa_share": (lambda v, _: 0 < v <= 1, "in (0, 1]"),
    "dropout attention_dropout discount cost_discount budget_margin ema_decay held_out_fraction": (
        lambda v, _: 0 <= v < 1,
        "in [0, 1)",
    ),
    "critic_start expert_fraction target_quantile pareto_fraction relabel_fraction": (
        lambda v, _: 0 <= v <= 1,
        "in [0, 1]",
    ),
    "critic_learning_rate max_grad_norm critic_max_grad_norm max_weight initial_temperature": (
        lambda v, _: v > 0,
        "> 0",
    ),
    "alpha gamma eta kappa lambda_step lambda_max weight_decay pareto_increase cost_head_weight "
    "frontier_sharpness weight_floor target_pessimism cost_pessimism shield_candidates": (
        lambda v, _: v >= 0,
        ">= 0",
    ),
    "rtg_scale ctg_scale": (lambda v, _: v is None or v > 0, "> 0 or None"),
    "log_std_range": (lambda v, _: v[0] < v[1], "low < high"),
    "weighting": one_of(Weighting),
    "sampling": one_of(Sampling),
    "kappa_mode": one_of(KappaMode),
    "ctg_shape": one_of(TokenShape),
    "time_embedding": one_of(TimeEmbedding),
    "cautious_quantile": (
        lambda v, c: v is None or 0 <= v <= c.target_quantile,
        "in [0, target_quantile] or None",
    ),
    "critic_inputs": one_of(CriticInputs),
    "critic_targets": one_of(CriticTargets),
    "target_rate": (lambda v, _: v is None or 0 <= v <= 1, "in [0, 1] or None"),
    "embedding_size": (lambda v, c: v % c.n_heads == 0, "a multiple of n_heads"),
    "shield_candidates": (
        lambda v, c: not v or c.cost_penalty,
        "0 without `cost_penalty`: the shield needs a cost critic",
    ),
}

DEPLOYMENT = ("budget_margin", "ctg_floor", "replan", "exhausted_mode", "shield_candidates")
"""Fields that can be changed after training."""

TRAINING = (
    "relabel_fraction", "pareto_fraction", "pareto_increase", "alpha", "gamma", "max_weight",
    "frontier_sharpness", "kappa_share",
    "micro_batch_size", "weight_decay", "adam_betas",
    "max_grad_norm", "entropy_bonus", "dropout", "attention_dropout", "critic_learning_rate",
    "critic_max_grad_norm", "target_rate", "eta", "kappa", "kappa_mode", "lambda_step",
    "lambda_max",
)  # fmt: skip
"""Fields that can be changed when a trained agent is loaded, for training on."""
