"""The training methods as data: which loss is computed on which output, and which parts it trains.

The encoder computes the embedding, the projector maps it to a projection that only some losses use, and the head turns
the embedding into logits. Each stage of a method minimises the sum of its terms and trains the named parts. All other
parts are frozen and in evaluation mode, so the statistics of their normalisation layers do not change either.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: Outputs of a network that a term can use.
Output = Literal["embedding", "projection", "logits"]
#: Parts of a network that a stage can train.
Part = Literal["encoder", "projector", "head"]


@dataclass(frozen=True)
class Term:
    """weight * loss(output)."""

    loss: str  # a name that the training package knows, or one passed to its `register_loss`
    on: Output
    detach: bool = False  # stop the gradient at the output, so that only the head is trained by this term
    weight: float = 1.0
    share: Literal["prototypes", "samples"] | None = None  # multiply by `prototype_share`, or by what it leaves


@dataclass(frozen=True)
class Stage:
    """Minimise the sum of `terms` over the parts in `trains`, for `epochs` times the epochs of the run.

    `reference_lr` is the learning rate for a batch of 1,024 images, from which that of other batch sizes is derived.
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


@dataclass(frozen=True)
class Method:
    """How a network is trained: the kind of its head, and the stages in order."""

    key: str
    title: str
    summary: str
    head: Literal["linear", "prototype"]
    stages: tuple[Stage, ...]
    class_means_head: bool = False  # set the prototypes to the class means of the training images at the end

    @property
    def projector(self) -> bool:
        return any("projection" in stage.outputs for stage in self.stages)


_SUPCON = Term("supcon", on="projection")
_SPCE = Term("spce", on="embedding")
_TIGHTNESS = Term("tightness", on="embedding", detach=True)
_CROSS_ENTROPY = Term("ce", on="logits")
_SUPCON_STAGE = Stage((_SUPCON,), trains=("encoder", "projector"))
# A head on a frozen encoder is a short convex problem, in which weight decay only biases the solution.
_HEAD_STAGE = Stage((_CROSS_ENTROPY,), trains=("head",), epochs=0.2, reference_lr=0.8, weight_decay=False)

PAPER_METHODS = (
    Method(
        key="ce",
        title="CE",
        summary="One stage: cross entropy of a linear head with bias trains encoder and head.",
        head="linear",
        stages=(Stage((_CROSS_ENTROPY,), trains=("encoder", "head"), reference_lr=0.8),),
    ),
    Method(
        key="supcon_ce",
        title="SupCon+CE",
        summary="SupCon on the projection trains encoder and projector; then cross entropy trains a linear head alone.",
        head="linear",
        stages=(_SUPCON_STAGE, _HEAD_STAGE),
    ),
    Method(
        key="supcon_ce_n",
        title="SupCon+CE(n)",
        summary="As SupCon+CE, with a normalised head: no bias, logits cos(z, theta_k) / temperature.",
        head="prototype",
        stages=(_SUPCON_STAGE, _HEAD_STAGE),
    ),
    Method(
        key="supcon_tt",
        title="SupCon+Tt",
        summary="One stage: SupCon on the projection trains encoder and projector, tightness the prototypes alone.",
        head="prototype",
        stages=(Stage((_SUPCON, _TIGHTNESS), trains=("encoder", "projector", "head")),),
    ),
    Method(
        key="spce",
        title="SPCE",
        summary="One stage, no projector: SPCE on the embedding trains the encoder, tightness the prototypes alone.",
        head="prototype",
        stages=(Stage((_SPCE, _TIGHTNESS), trains=("encoder", "head")),),
    ),
    Method(
        key="spce_m",
        title="SPCE(M)",
        summary="SPCE on the embedding trains the encoder; then each prototype is set to the mean of its class.",
        head="prototype",
        stages=(Stage((_SPCE,), trains=("encoder",)),),
        class_means_head=True,
    ),
    Method(
        key="esupcon",
        title="ESupCon",
        summary="One stage, no projector: SupCon with prototypes in its contrast trains encoder and prototypes.",
        head="prototype",
        stages=(Stage((Term("esupcon", on="embedding"),), trains=("encoder", "head")),),
    ),
)
#: The paper's methods, and those that we add to them.
BUILT_IN_METHODS = (
    *PAPER_METHODS,
    Method(
        key="supcon_cosine_ce",
        title="SupCon & CE(n)",
        summary="One stage, no projector: SupCon on the embedding and cross entropy of the prototypes train both.",
        head="prototype",
        stages=(
            Stage(
                (
                    Term("supcon", on="embedding", share="samples"),
                    Term("ce", on="logits", share="prototypes"),
                ),
                trains=("encoder", "head"),
            ),
        ),
    ),
)
#: The known methods by key: those above, and those that were registered.
METHODS: dict[str, Method] = {method.key: method for method in BUILT_IN_METHODS}


def register(method: Method) -> Method:
    """Register a custom method, so that specifications, tables and the command line of this process know its key.

    Registering an equal method again changes nothing; another method under a known key is a ValueError.
    """
    if not method.key.isidentifier():
        raise ValueError(f"the key of a method must be a word of letters, digits and _; got {method.key!r}.")
    if METHODS.setdefault(method.key, method) != method:
        raise ValueError(f"there is another method {method.key!r} already. Choose another key.")
    return method


def get_method(method: str | Method) -> Method:
    """Return the method with this key; a method is returned unchanged."""
    if isinstance(method, Method):
        return method
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}; got {method!r}.")
    return METHODS[method]
