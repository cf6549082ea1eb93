"""Multi-token prediction: what each token is asked for, and the loss that its hidden states give."""

import pytest
import tiny

pytestmark = pytest.mark.upstream
FP32 = 1e-5
DEPTHS = range(1, tiny.SIZE.mtp_depths + 1)


def step(mask_name):
    """One step with only MTP's loss: logged value of each depth and the reference's, the head's gradient's relative
    error, tokens whose hidden states have a gradient at each depth, and tokens that should."""
    import torch
    from megatron.core.transformer.multi_token_prediction import MTPLossLoggingHelper as Helper
    from torch.nn.functional import cross_entropy

    model, batch, seen = tiny.model(), tiny.batch(), []
    if mask_name == "prompt":  # the first half of each document is not trained on
        for low, high in tiny.SPANS:
            batch["loss_mask"][0, low : (low + high) // 2] = 0
    model.zero_grad()
    Helper.clean_metrics_in_tracker()
    hook = model.mtp.register_forward_hook(lambda module, given, result: (result.retain_grad(), seen.append(result))[0])
    try:
        (model(packed_seq_params=tiny.packed(), **batch) * 0).sum().backward()
    finally:
        hook.remove()
    hidden, grads = (x[tiny.TOKENS :, 0].split(tiny.TOKENS) for x in (seen[0].detach().double(), seen[0].grad))
    weight = model.output_layer.weight.detach().double().requires_grad_()
    losses, asked = [], []
    for depth in DEPTHS:
        mask = batch["loss_mask"][0].roll(-depth)
        asked.append([t for low, high in tiny.SPANS for t in range(low, high - 1 - depth) if mask[t]])
        targets = batch["tokens"][0].roll(-1 - depth)[asked[-1]]
        losses.append(cross_entropy(hidden[depth - 1][asked[-1]] @ weight.T, targets))
    (ideal,) = torch.autograd.grad(tiny.SIZE.mtp_loss_coeff / len(losses) * sum(losses), weight)
    return {
        "logged": Helper.tracker["loss_values"].tolist(),
        "loss": [loss.item() for loss in losses],
        "gradient": tiny.error(model.output_layer.weight.grad, ideal),
        "felt": [grad.abs().sum(1).nonzero()[:, 0].tolist() for grad in grads],
        "asked": asked,
    }


def shifted():
    """Labels and mask of the batch as Megatron shifts them for the first depth."""
    from megatron.core.transformer.multi_token_prediction import roll_tensor

    batch = tiny.batch()
    rolled = (roll_tensor(batch[name], packed_seq_params=tiny.packed())[0] for name in ("labels", "loss_mask"))
    return batch["labels"][0].tolist(), *(row[0].tolist() for row in rolled)


@pytest.mark.parametrize("mask", ["documents", "prompt"])
def test_a_depths_loss_is_the_mean_over_tokens_whose_document_goes_on_that_far(megatron, mask):
    found = megatron.call(step, mask)
    assert found["logged"] == pytest.approx(found["loss"], rel=1e-5)
    assert found["gradient"] < FP32
    assert found["felt"] == found["asked"]


def test_labels_are_shifted_within_each_document(megatron):
    labels, rolled, mask = megatron.call(shifted)
    for low, high in tiny.SPANS:
        assert rolled[low : high - 1] == labels[low + 1 : high] if low < high else True
        assert mask[max(low, high - 2) : high] == [0] * min(2, high - low)
        assert all(mask[low : high - 2])
