"""The section 'loss': what the student is held to."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from .section import Positive, Section, Share

Divergence = Literal["forward_kl", "reverse_kl", "jsd"]
Tail = Literal["bucket", "renormalize", "drop"]
Positions = Literal["all", "entropy", "gap"]
Impl = Literal["auto", "reference", "chunked", "triton", "tiled"]


LayerPair = tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0)]]


def _as_pairs(value: Any) -> Any:
    """'1:2,2:4' as pairs of numbers; '' as none."""
    return tuple(tuple(pair.strip().split(":")) for pair in value.split(",") if pair.strip()) if isinstance(value, str) else value


class LossConfig(Section):
    kl_weight: Share = 1.0
    """Weight of the divergence from the teacher, T² included in it."""
    ce_weight: Share = 0.0
    """Weight of cross-entropy with the text's own next token (hard labels)."""
    temperature: Annotated[float, Field(ge=0.5, le=8.0)] = 1.0
    """Softmax temperature of both sides of the divergence; the cache holds what any T in [0.5, 8] needs."""
    divergence: Divergence = "forward_kl"
    """'forward_kl': cover all the teacher considers likely; 'reverse_kl': prefer its favourites; 'jsd': between the two."""
    jsd_weight: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """'jsd' only: the teacher's share of the mixture that both are compared with; near 0 like forward KL, near 1 like reverse KL."""
    z_loss_weight: Share = 0.0
    """Weight of the squared log-sum-exp of the student's logits, which keeps them small; 1e-4 is usual, 0 leaves it out."""
    router_loss_weight: Share | None = None
    """Mixtures of experts: weight of the routers' load-balancing loss, which is added; none: as the student's own config says
    (router_aux_loss_coef where output_router_logits is on, else 0)."""
    hidden_weight: Share = 0.0
    """Weight of the difference between the student's hidden states, each through a learned projection, and those that the cache holds of
    the teacher (capture.hidden_layers); 0: off."""
    hidden_loss: Literal["cosine", "mse"] = "cosine"
    """How that difference is measured: 'cosine': 1 - cosine; 'mse': mean squared difference of their numbers."""
    layer_map: Annotated[tuple[LayerPair, ...], BeforeValidator(_as_pairs)] = ()
    """Which layer of the student learns from which layer of the teacher, such as 1:2,2:4; none: every stored layer is learned at the
    same depth. 0 is the embeddings."""
    adversarial_weight: Share = 0.0
    """Weight of the same divergence from the same cached targets where the student's input embeddings are changed for the worse; 0: off.
    A step then makes adversarial_steps + 1 more forward and backward passes."""
    adversarial_radius: Annotated[float, Field(gt=0, le=10)] = 0.05
    """How far a token's embedding may be changed, L2, as a share of the mean norm of the student's embeddings."""
    adversarial_steps: Annotated[int, Field(ge=1, le=3)] = 1
    """Steps of gradient ascent that look for the worst change."""
    tail: Tail = "bucket"
    """The mass outside the top K: 'bucket' keeps it as one entry (unbiased), 'renormalize' spreads it over the K, 'drop' leaves it out."""
    top_k: Positive | None = None
    """Use fewer entries than the cache holds; what is cut goes to the tail."""
    positions: Positions = "all"
    """Which positions are learned from: 'all'; 'entropy': those where the teacher is least sure; 'gap': those where the student is furthest
    from the teacher now."""
    position_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """'entropy' and 'gap': the share of each window's positions that is learned from. Judging always looks at all of them."""
    impl: Impl = "auto"
    """Which implementation computes it."""
    chunk_tokens: Positive | None = None
    """Tokens per chunk of the head; none: chosen from the vocabulary. Peak logits: chunk_tokens x vocabulary x 4 bytes."""

    @model_validator(mode="after")
    def _learns(self) -> Self:
        if self.kl_weight == 0 and self.ce_weight == 0:
            raise ValueError("loss.kl_weight and loss.ce_weight are both 0: nothing would be learned. Set one of them above 0")
        if self.positions == "all" and self.position_share < 1:
            raise ValueError(f"loss.position_share {self.position_share:g} needs loss.positions 'entropy' or 'gap', not 'all'")
        if self.layer_map and not self.hidden_weight:
            raise ValueError("loss.layer_map is only read with loss.hidden_weight above 0, which is 0")
        return self
