"""What a watch keeps, and until when."""

import torch

from model.alignment.watched import watching


def test_the_first_call_is_kept_and_hooks_end_with_the_block():
    module = torch.nn.Linear(2, 3)
    with watching() as watch:
        watch.after(module, "given", lambda given, _: given[0])
        watch.after(module, "made")
        first = module(torch.ones(2))
        module(torch.zeros(2))
    assert torch.equal(watch.seen["made"], first) and torch.equal(watch.seen["given"], torch.ones(2))
    with watching() as other:
        module(torch.ones(2))
    assert other.seen == {} and not module._forward_hooks
