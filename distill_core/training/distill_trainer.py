"""transformers.Trainer with the fused loss: what one micro-batch costs, and the means of a step."""
# B: windows in a micro-batch   L: tokens in a window   P = L - 1: positions   N = B x P: rows of the loss   D: hidden size

from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers.integrations import TensorBoardCallback
from transformers.optimization import GreedyLR

from ..batches import model_inputs
from ..cache import Cache
from ..config import LossConfig
from ..group import ALONE, Group
from ..heads import Body, Head, HeadOps, read_head, run_body
from ..losses import IGNORE_INDEX, Workspace, gap_rows, loss_floor, topk_kl
from ..positions import num_learned, with_widest_gaps
from ..routers import router_loss_weight
from .adversarial import Adversarial
from .checkpoints import full_disk_named
from .hidden_states import HiddenStates
from .terms import MicroBatch, RouterBalance, Term

SUMS = ("loss", "kl", "ce", "floor", "gold", "asked", "agreed", "tokens")


class DistillTrainer(transformers.Trainer):
    """transformers.Trainer whose loss asks the model for what enters its head, never for logits."""

    loss_is_scaled_for_ga = True  # the loss is divided once, by the valid tokens of the whole step

    def __init__(self, *, cache: Cache, loss: LossConfig, ops: HeadOps, group: Group = ALONE, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.cache, self.distill_loss, self.head_ops, self.group = cache, loss, ops, group
        router_weight = router_loss_weight(arguments["model"], loss.router_loss_weight)
        self.terms: list[Term] = [RouterBalance(router_weight)] if router_weight > 0 else []
        self.needs_router_loss = router_weight > 0
        self.hidden = HiddenStates(arguments["model"], cache, loss, seed=self.args.seed) if loss.hidden_weight > 0 else None
        if self.hidden is not None:
            self.terms.append(self.hidden)
        if loss.adversarial_weight > 0:
            self.terms.append(Adversarial(cache, loss, ops, seed=self.args.seed))
        self.step_sums: list[torch.Tensor] = []
        self.workspace = Workspace()  # the loss's largest buffer is asked of the system once, not for every micro-batch

    def listen_first(self, watch: transformers.TrainerCallback, *, tensorboard: Path) -> None:
        """Let one callback hear of everything before the trackers do. `tensorboard`: folder for its events, if it is asked to report."""
        callbacks = self.callback_handler.callbacks
        callbacks.insert(0, watch)
        for callback in callbacks:
            if isinstance(callback, TensorBoardCallback) and callback.logging_dir is None:
                callback.logging_dir = str(tensorboard)

    def _get_num_items_in_batch(self, batch_samples: list, device: torch.device) -> torch.Tensor:
        """What the loss of a micro-batch is divided by: the valid tokens of the whole optimizer step, of all processes.

        Their gradients are averaged, not summed, so each divides by the mean count per process.
        """
        counts = [num_learned(batch) for batch in batch_samples]
        total = torch.stack(counts).sum().to(device) if counts else torch.ones((), device=device)
        return self.group.sum(total).clamp(min=1) / self.group.count

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None) -> Any:  # noqa: FBT001, FBT002 - transformers' signature
        """Loss of one micro-batch, divided by the valid tokens of its step. Raises NotImplementedError if asked for logits."""
        if return_outputs:
            raise NotImplementedError("the fused loss makes no logits to return; judge a model with: python -m distill_core evaluate")
        loss = self.distill_loss
        balance = self.needs_router_loss
        given: Any = model_inputs(inputs, packing=self.cache.packing, mask_padding=balance)
        body = run_body(model, with_router_loss=balance, with_layers=self.hidden is not None, **given)
        head = read_head(model, self.head_ops)
        if "gap_ranks" in inputs:
            inputs = self.where_furthest(inputs, body, head)
        teacher = {
            name: inputs[name].flatten(0, 1) for name in ("teacher_ids", "teacher_logprobs", "teacher_tail", "labels", "gold_logprob")
        }
        shared: dict[str, Any] = {
            "temperature": loss.temperature,
            "kl_weight": loss.kl_weight,
            "ce_weight": loss.ce_weight,
            "divergence": loss.divergence,
            "jsd_weight": loss.jsd_weight,
            "tail": loss.tail,
            "valid_rows": inputs["valid_rows"],
        }
        parts = topk_kl(
            body.hidden_BLD[:, :-1].flatten(0, 1),
            head.weight_VD,
            teacher["teacher_ids"],
            teacher["teacher_logprobs"],
            teacher_tail_N=teacher["teacher_tail"],
            labels_N=teacher["labels"],
            bias_V=head.bias_V,
            logit_scale=head.logit_scale,
            logit_softcap=head.logit_softcap,
            vocab_size=self.cache.plan.vocab_size,
            impl=loss.impl,
            chunk_tokens=loss.chunk_tokens,
            z_loss_weight=loss.z_loss_weight,
            divisor=num_items_in_batch,
            workspace=self.workspace,
            **shared,
        )
        floor = loss_floor(
            teacher["teacher_logprobs"],
            teacher_tail_N=teacher["teacher_tail"],
            labels_N=teacher["labels"],
            teacher_ids_NK=teacher["teacher_ids"],
            **shared,
        )
        gold = torch.where(teacher["labels"] != IGNORE_INDEX, teacher["gold_logprob"], 0.0).sum()
        asked = num_of_teacher(teacher) if self.cache.has_hard_labels else parts.num_valid
        total, added, number = parts.loss, [], (self.state.global_step, len(self.step_sums), self.group.number)
        for term in self.terms:
            added.append(term.value(MicroBatch(model=model, inputs=inputs, body=body, num_valid=parts.num_valid, number=number)))
            total = total + term.weight * added[-1] / num_items_in_batch
        sums = (total.detach() * num_items_in_batch, parts.kl, parts.ce, floor, gold, asked, parts.agreement, parts.num_valid, *added)
        self.step_sums.append(torch.stack([value.detach().double() for value in sums]))
        return total

    def where_furthest(self, inputs: dict[str, Any], body: Body, head: Head) -> dict[str, Any]:
        """The micro-batch with the positions of loss.positions 'gap' only: the student's distance from the teacher now, without a graph."""
        loss = self.distill_loss
        gap_M = gap_rows(
            body.hidden_BLD[:, :-1].flatten(0, 1),
            head.weight_VD,
            inputs["teacher_ids"].flatten(0, 1),
            inputs["teacher_logprobs"].flatten(0, 1),
            teacher_tail_N=inputs["teacher_tail"].flatten(),
            labels_N=inputs["labels"].flatten(),
            valid_rows=inputs["valid_rows"],
            bias_V=head.bias_V,
            logit_scale=head.logit_scale,
            logit_softcap=head.logit_softcap,
            vocab_size=self.cache.plan.vocab_size,
            temperature=loss.temperature,
            divergence=loss.divergence,
            jsd_weight=loss.jsd_weight,
            tail=loss.tail,
            chunk_tokens=loss.chunk_tokens,
            workspace=self.workspace,
        )
        return with_widest_gaps(inputs, gap_M)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """To the callbacks only: metrics.jsonl is the history, and checkpoints do not grow with it."""
        self.control = self.callback_handler.on_log(self.args, self.state, self.control, logs)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        folder = Path(str(self.args.output_dir))
        with full_disk_named(folder, folder.parent.name):
            super()._save_checkpoint(model, trial)

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        super()._save(output_dir, state_dict)
        if self.hidden is not None:
            self.hidden.save(Path(str(output_dir)))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        if self.hidden is not None:
            self.hidden.load(Path(resume_from_checkpoint))

    def heldout_is(self, value: float) -> None:
        """For the schedulers that follow the held-out text (reduce_lr_on_plateau, greedy); the others go by the steps."""
        if isinstance(self.lr_scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau | GreedyLR):
            self.lr_scheduler.step(value)

    def take_means(self) -> dict[str, float]:
        """Per-token means since they were last taken; the only place where the host waits for the device.

        teacher_nll is the teacher's own: a mean over its rows, without hard labels (translated caches); left out where it has none.
        """
        added = [term.name for term in self.terms]
        sums = dict(zip((*SUMS, *added), self.group.sum(torch.stack(self.step_sums).sum(0)).tolist(), strict=True))
        self.step_sums.clear()
        tokens = max(sums["tokens"], 1.0)
        names = ("loss", "kl", "ce", "floor", *added)
        means = {name: sums[name] / tokens for name in names}
        if sums["asked"] or not sums["tokens"]:
            means["teacher_nll"] = -sums["gold"] / max(sums["asked"], 1.0)
        return means | {"top1_agreement": sums["agreed"] / tokens, "tokens": sums["tokens"]}


def num_of_teacher(teacher: dict[str, torch.Tensor]) -> torch.Tensor:
    """0-d: learned rows that are the teacher's own; a hard label has one entry and no tail."""
    is_hard_N = teacher["teacher_tail"].isneginf() & teacher["teacher_logprobs"][:, 1:].isneginf().all(-1)
    return ((teacher["labels"] != IGNORE_INDEX) & ~is_hard_N).sum()
