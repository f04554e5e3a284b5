"""The seven training methods as data: which loss is taken on which output, and which parts it trains.

A network has up to three parts: the encoder gives the embedding, the projector maps it to a projection used by some
losses only, the head turns the embedding into logits. A method is a sequence of stages; a stage sums its terms and
trains the named parts. Parts that a stage does not train are frozen and in evaluation mode, so not even the
statistics of their normalisation layers move. The training loop reads this; it knows no method by name.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

LossName = str  # ce, supcon, spce, tightness, esupcon, or one given to `esupcon.engine.objective.register_loss`
#: What of a network a term can be taken on.
Output = Literal["embedding", "projection", "logits"]
#: What of a network a stage can train.
Part = Literal["encoder", "projector", "head"]
# Losses that compare samples with each other alone.
_READ_NO_HEAD = {"supcon", "spce"}


@dataclass(frozen=True)
class Term:
    """weight * loss(output). `detach` stops the gradient at the output, so that only the head learns from it."""

    loss: LossName
    on: Output
    detach: bool = False
    weight: float = 1.0


@dataclass(frozen=True)
class Stage:
    """Minimises the sum of `terms` over the parts in `trains`, for `epochs` times the epochs of the run.

    `reference_lr` is the learning rate at a batch of 1,024 images, from which that of other batch sizes is derived.
    """

    terms: tuple[Term, ...]
    trains: tuple[Part, ...]
    epochs: float = 1.0
    reference_lr: float = 0.5
    weight_decay: bool = True

    def __post_init__(self) -> None:
        if not self.terms or not self.trains or self.epochs <= 0:
            raise ValueError("a stage needs at least one term, one part to train, and epochs above 0.")

    @property
    def outputs(self) -> tuple[Output, ...]:
        return tuple(dict.fromkeys(term.on for term in self.terms))

    @property
    def core(self) -> Stage:
        """The stage without its head, where all other parts learn the same without it; else the stage itself.

        So it is where every term either stops at the output, and only the head learns from it, or reads no head.
        """
        terms = tuple(term for term in self.terms if not term.detach)
        if "head" not in self.trains or not terms or not {term.loss for term in terms} <= _READ_NO_HEAD:
            return self
        return replace(self, terms=terms, trains=tuple(part for part in self.trains if part != "head"))


@dataclass(frozen=True)
class Method:
    """How a network is trained: its kind of head, and the stages, one after the other."""

    key: str
    title: str
    summary: str
    head: Literal["linear", "prototype"]
    stages: tuple[Stage, ...]
    class_means_head: bool = False  # prototypes are set to the class means of the training images at the end

    @property
    def projector(self) -> bool:
        return any("projection" in stage.outputs for stage in self.stages)


_SUPCON = Term("supcon", on="projection")
_TIGHTNESS = Term("tightness", on="embedding", detach=True)
_CROSS_ENTROPY = Term("ce", on="logits")
# The second stage learns a head on a frozen encoder: a short convex problem, for which decay only biases the answer.
_HEAD_ON_FROZEN_ENCODER = Stage(
    terms=(_CROSS_ENTROPY,), trains=("head",), epochs=0.2, reference_lr=0.8, weight_decay=False
)
_SUPCON_STAGE = Stage(terms=(_SUPCON,), trains=("encoder", "projector"))

CE = Method(
    key="ce",
    title="CE",
    summary="Cross entropy of a linear head with bias: -log softmax(W z + b)_y. Trains encoder and head.",
    head="linear",
    stages=(Stage(terms=(_CROSS_ENTROPY,), trains=("encoder", "head"), reference_lr=0.8),),
)
SUPCON_CE = Method(
    key="supcon_ce",
    title="SupCon+CE",
    summary=(
        "Two stages. First SupCon on the projection trains encoder and projector; then cross entropy trains a "
        "linear head on the frozen encoder's embedding. No gradient of the second stage reaches the encoder."
    ),
    head="linear",
    stages=(_SUPCON_STAGE, _HEAD_ON_FROZEN_ENCODER),
)
SUPCON_CE_N = Method(
    key="supcon_ce_n",
    title="SupCon+CE(n)",
    summary="As SupCon+CE, with a normalised head: no bias, logits cos(z, theta_k) / temperature.",
    head="prototype",
    stages=(_SUPCON_STAGE, _HEAD_ON_FROZEN_ENCODER),
)
SUPCON_TT = Method(
    key="supcon_tt",
    title="SupCon+Tt",
    summary=(
        "One stage. SupCon on the projection trains encoder and projector; the tightness term "
        "-cos(z_i, theta_{y_i}) on the detached embedding trains the prototypes alone."
    ),
    head="prototype",
    stages=(Stage(terms=(_SUPCON, _TIGHTNESS), trains=("encoder", "projector", "head")),),
)
SPCE = Method(
    key="spce",
    title="SPCE",
    summary=(
        "One stage, no projector. SPCE on the embedding trains the encoder; the tightness term on the detached "
        "embedding trains the prototypes alone."
    ),
    head="prototype",
    stages=(Stage(terms=(Term("spce", on="embedding"), _TIGHTNESS), trains=("encoder", "head")),),
)
SPCE_M = Method(
    key="spce_m",
    title="SPCE(M)",
    summary=(
        "SPCE on the embedding trains the encoder; afterwards one pass over the un-augmented training images sets "
        "each prototype to the mean of its class's unit embeddings."
    ),
    head="prototype",
    stages=(Stage(terms=(Term("spce", on="embedding"),), trains=("encoder",)),),
    class_means_head=True,
)
ESUPCON = Method(
    key="esupcon",
    title="ESupCon",
    summary=(
        "One stage, no projector. The extended SupCon loss on the embedding, prototypes among its contrast, trains "
        "encoder and prototypes together; gradients flow to both."
    ),
    head="prototype",
    stages=(Stage(terms=(Term("esupcon", on="embedding"),), trains=("encoder", "head")),),
)

#: The known methods by key: the seven, and those that were registered.
METHODS: dict[str, Method] = {
    method.key: method for method in (CE, SUPCON_CE, SUPCON_CE_N, SUPCON_TT, SPCE, SPCE_M, ESUPCON)
}


def register(method: Method) -> Method:
    """Make an own method known by its key, to specifications, tables and the command line of this process.

    The same method again changes nothing; another one under a known key is refused.
    """
    if not method.key.isidentifier():
        raise ValueError(f"the key of a method must be a word of letters, digits and _; got {method.key!r}.")
    if METHODS.setdefault(method.key, method) != method:
        raise ValueError(f"there is another method {method.key!r} already. Give yours a key of its own.")
    return method


def get_method(method: str | Method) -> Method:
    """The method of that key; a method is returned as it is."""
    if isinstance(method, Method):
        return method
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}; got {method!r}.")
    return METHODS[method]


def first_stage(method: str | Method) -> str | None:
    """The core of a method's first stage in words, equal where two methods have it in common.

    None where there is nothing to share: where encoder and head learn from each other.
    """
    known = METHODS.get(method) if isinstance(method, str) else method
    if known is None or "head" in known.stages[0].core.trains:
        return None
    return repr(known.stages[0].core)


def takes_first_stage(method: str | Method) -> bool:
    """Whether a method can do with a first stage that another has trained: its own is no more than the core."""
    known = METHODS.get(method) if isinstance(method, str) else method
    return known is not None and first_stage(known) is not None and known.stages[0].core == known.stages[0]
