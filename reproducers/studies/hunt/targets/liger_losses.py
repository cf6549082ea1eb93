"""Liger-Kernel's losses. References: torch.nn.functional, and the formulas that upstream's docstrings state."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from reproducers.studies.hunt.targets.target import Operand, Target

FUNCTIONAL = "liger_kernel.transformers.functional:"
ROWS = (1, 2, 3, 5, 8)
CLASSES = (2, 3, 17, 32, 70, 129)
HIDDEN = (1, 2, 8, 17, 33)


def cross_entropy(
    input: Any,
    target: Any,
    weight: Any = None,
    ignore_index: int = -100,
    lse_square_scale: float = 0.0,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    softcap: float | None = None,
) -> Any:
    """torch's, of capped logits, with the z-loss ``lse_square_scale * logsumexp**2`` of each token that counts."""
    z = softcap * torch.tanh(input / softcap) if softcap else input
    loss = F.cross_entropy(z, target, weight, None, ignore_index, None, reduction, label_smoothing)
    if lse_square_scale:
        counts = target != ignore_index
        more = lse_square_scale * torch.where(counts, z.logsumexp(-1), 0.0) ** 2
        loss = loss + {"none": more, "sum": more.sum(), "mean": more.sum() / counts.sum()}[reduction]
    return loss


def fused_linear_cross_entropy(
    input: Any,
    weight: Any,
    target: Any,
    bias: Any = None,
    ce_weight: Any = None,
    ignore_index: int = -100,
    lse_square_scale: float = 0.0,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    softcap: float | None = None,
) -> Any:
    """The loss of the head's product, that exists whole."""
    z = F.linear(input, weight, bias)
    z = softcap * torch.tanh(z / softcap) if softcap else z
    loss = F.cross_entropy(z, target, ce_weight, None, ignore_index, None, reduction, label_smoothing)
    if lse_square_scale:
        counts = target != ignore_index
        more = lse_square_scale * torch.where(counts, z.logsumexp(-1), 0.0) ** 2
        loss = loss + {"none": more, "sum": more.sum(), "mean": more.sum() / counts.sum()}[reduction]
    return loss


def jsd(input: Any, target: Any, shift_labels: Any = None, beta: float = 0.5, ignore_index: int = -100) -> Any:
    """Generalised Jensen-Shannon divergence of log-probabilities (arXiv 2306.13649), the mean over rows that count."""
    p, q = target.exp(), input.exp()
    mean = (beta * p + (1 - beta) * q).log()
    if beta == 0:
        each = p * (target - input)
    elif beta == 1:
        each = q * (input - target)
    else:
        each = beta * p * (target - mean) + (1 - beta) * q * (input - mean)
    counts = torch.ones(len(input), dtype=torch.bool) if shift_labels is None else shift_labels != ignore_index
    return torch.where(counts[:, None], each, 0.0).sum() / counts.sum()


def fused_linear_jsd(
    student_input: Any,
    student_weight: Any,
    teacher_input: Any,
    teacher_weight: Any,
    shift_labels: Any = None,
    jsd_beta: float = 0.5,
    ignore_index: int = -100,
    temperature: float = 1.0,
) -> Any:
    """The divergence of two heads' log-probabilities at a temperature."""
    x = (student_input @ student_weight.T / temperature).log_softmax(-1)
    y = (teacher_input @ teacher_weight.T / temperature).log_softmax(-1)
    p, q = y.exp(), x.exp()
    if jsd_beta == 0:
        each = p * (y - x)
    elif jsd_beta == 1:
        each = q * (x - y)
    else:
        mean = (jsd_beta * p + (1 - jsd_beta) * q).log()
        each = jsd_beta * p * (y - mean) + (1 - jsd_beta) * q * (x - mean)
    counts = torch.ones(len(x), dtype=torch.bool) if shift_labels is None else shift_labels != ignore_index
    return torch.where(counts[:, None], each, 0.0).sum() / counts.sum()


def kl_div(input: Any, target: Any, reduction: str = "mean", log_target: bool = False) -> Any:
    """torch's."""
    target = target.log() if log_target else target
    return F.kl_div(input, target, reduction=reduction, log_target=log_target)


def call_kl_div(function: Any, input: Any, target: Any, reduction: str = "mean", log_target: bool = False) -> Any:
    """With the logarithm of the target where that is asked for."""
    return function(input, target.log() if log_target else target, reduction=reduction, log_target=log_target)


def fused_linear_kl_div(
    student_input: Any,
    student_weight: Any,
    target: Any,
    shift_labels: Any = None,
    reduction: str = "batchmean",
    ignore_index: int = -100,
    temperature: float = 1.0,
) -> Any:
    """torch's of a head's log-probabilities, over the rows that count."""
    x = (student_input @ student_weight.T / temperature).log_softmax(-1)
    counts = torch.ones(len(x), dtype=torch.bool) if shift_labels is None else shift_labels != ignore_index
    total = torch.where(counts[:, None], F.kl_div(x, target, reduction="none"), 0.0).sum()
    return total / {"sum": 1, "batchmean": counts.sum(), "mean": counts.sum() * target.shape[1]}[reduction]


def tvd(input: Any, target: Any, shift_labels: Any = None, reduction: str = "mean", ignore_index: int = -100) -> Any:
    """Half the sum of |p - q| over the classes."""
    each = 0.5 * (input - target).abs()
    counts = torch.ones(len(input), dtype=torch.bool) if shift_labels is None else shift_labels != ignore_index
    each = torch.where(counts[:, None], each, 0.0)
    if reduction == "none":
        return each
    return each.sum() / {"sum": 1, "batchmean": counts.sum(), "mean": counts.sum() * target.shape[1]}[reduction]


def ce_tvd(student: Any, teacher: Any, target: Any) -> Any:
    """Cross entropy and total variation distance of each token."""
    counts = target != -100
    distance = 0.5 * (student.softmax(-1) - teacher.softmax(-1)).abs().sum(-1)
    return F.cross_entropy(student, target, reduction="none"), torch.where(counts, distance, 0.0)


def call_ce_tvd(function: Any, student: Any, teacher: Any, target: Any) -> Any:
    """An autograd.Function takes positions only."""
    return function.apply(student, teacher, target, -100)


def vocab_parallel(logits: Any, target: Any, label_smoothing: float = 0.0) -> Any:
    """Each token's cross entropy, on one rank."""
    loss = F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none", label_smoothing=label_smoothing)
    return loss.view(target.shape)


def call_vocab_parallel(function: Any, logits: Any, target: Any, label_smoothing: float = 0.0) -> Any:
    """With torch's formula of label smoothing, without a group."""
    return function.apply(logits, target, None, -100, label_smoothing, "pytorch", "global")


def scaled_cross_entropy(hidden: Any, weight: Any, target: Any, temperature: float = 1.0) -> Any:
    """(negative log-likelihood, entropy) of each token at a temperature."""
    z = hidden @ weight.T / temperature
    logp = z.log_softmax(-1)
    counts = target != -100
    entropy = torch.where(counts, -(logp.exp() * logp).sum(-1), 0.0)
    return F.cross_entropy(z, target, reduction="none"), entropy


def call_scaled_cross_entropy(function: Any, hidden: Any, weight: Any, target: Any, temperature: float = 1.0) -> Any:
    """With the entropy."""
    return function.apply(hidden, weight, target, temperature, -100, 1, True)


_LABELS = Operand("target", "N", "label V", grad=False)
_SHIFTED = Operand("shift_labels", "N", "label V", grad=False, absent=True)
_CAPPED = {
    "reduction": ("mean", "sum", "none"),
    "label_smoothing": (0.0, 0.1),
    "lse_square_scale": (0.0, 0.01),
    "softcap": (None, 2.0, 30.0),
}
TARGETS = (
    Target(
        "cross_entropy",
        FUNCTIONAL + "liger_cross_entropy",
        (Operand("input", "N V"), _LABELS, Operand("weight", "V", "positive", grad=False, absent=True)),
        {"N": ROWS, "V": CLASSES},
        _CAPPED,
        cross_entropy,
        rows="N",
    ),
    Target(
        "fused_linear_cross_entropy",
        FUNCTIONAL + "liger_fused_linear_cross_entropy",
        (
            Operand("input", "N H"),
            Operand("weight", "V H"),
            _LABELS,
            Operand("bias", "V", absent=True),
            Operand("ce_weight", "V", "positive", grad=False, absent=True),
        ),
        {"N": ROWS, "V": CLASSES, "H": HIDDEN},
        _CAPPED,
        fused_linear_cross_entropy,
        rows="N",
    ),
    Target(
        "jsd",
        FUNCTIONAL + "liger_jsd",
        (Operand("input", "N V", "logp"), Operand("target", "N V", "logp", grad=False), _SHIFTED),
        {"N": ROWS, "V": CLASSES},
        {"beta": (0.5, 0.0, 1.0, 0.2)},
        jsd,
        rows="N",
    ),
    Target(
        "fused_linear_jsd",
        FUNCTIONAL + "liger_fused_linear_jsd",
        (
            Operand("student_input", "N H"),
            Operand("student_weight", "V H"),
            Operand("teacher_input", "N T", grad=False),
            Operand("teacher_weight", "V T", grad=False),
            _SHIFTED,
        ),
        {"N": ROWS, "V": CLASSES, "H": HIDDEN, "T": HIDDEN},
        {"jsd_beta": (0.5, 0.0, 1.0, 0.2), "temperature": (1.0, 2.0)},
        fused_linear_jsd,
        rows="N",
    ),
    Target(
        "kl_div",
        FUNCTIONAL + "liger_kl_div",
        (Operand("input", "N V", "logp"), Operand("target", "N V", "prob", grad=False)),
        {"N": ROWS, "V": CLASSES},
        {"reduction": ("batchmean", "mean", "sum", "none"), "log_target": (False, True)},
        kl_div,
        call_kl_div,
        rows="N",
    ),
    Target(
        "fused_linear_kl_div",
        FUNCTIONAL + "liger_fused_linear_kl_div",
        (
            Operand("student_input", "N H"),
            Operand("student_weight", "V H"),
            Operand("target", "N V", "prob", grad=False),
            _SHIFTED,
        ),
        {"N": ROWS, "V": CLASSES, "H": HIDDEN},
        {"reduction": ("batchmean", "mean", "sum"), "temperature": (1.0, 2.0)},
        fused_linear_kl_div,
        rows="N",
    ),
    Target(
        "tvd",
        FUNCTIONAL + "liger_tvd",
        (Operand("input", "N V", "prob"), Operand("target", "N V", "prob", grad=False), _SHIFTED),
        {"N": ROWS, "V": CLASSES},
        {"reduction": ("batchmean", "mean", "sum", "none")},
        tvd,
        rows="N",
    ),
    Target(
        "fused_ce_tvd",
        "liger_kernel.ops:LigerFusedCETVDFunction",
        (Operand("student", "N V"), Operand("teacher", "N V", grad=False), _LABELS),
        {"N": ROWS, "V": CLASSES},
        {},
        ce_tvd,
        call_ce_tvd,
        rows="N",
    ),
    Target(
        "vocab_parallel_cross_entropy",
        "liger_kernel.ops:LigerVocabParallelCEFunction",
        (Operand("logits", "S B V"), Operand("target", "S B", "label V", grad=False)),
        {"S": (1, 2, 5), "B": (1, 3), "V": CLASSES},
        {"label_smoothing": (0.0, 0.1)},
        vocab_parallel,
        call_vocab_parallel,
        rows="S",
    ),
    Target(
        "fused_linear_scaled_cross_entropy",
        "liger_kernel.ops:LigerFusedLinearScaledCrossEntropyFunction",
        (Operand("hidden", "N H"), Operand("weight", "V H"), _LABELS),
        {"N": ROWS, "V": CLASSES, "H": HIDDEN},
        {"temperature": (1.0, 1.7)},
        scaled_cross_entropy,
        call_scaled_cross_entropy,
        rows="N",
    ),
)
