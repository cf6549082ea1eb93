"""Records to test with."""

from model.records.records import Phases, Train, Valid


def step(number, **changed):
    """A training step of 1,000 tokens in 0.5 s."""
    values = {
        "step": number,
        "tokens": 1000 * number,
        "loss": 10 / number,
        "grad_norm": 1.0,
        "learning_rate": 1e-4,
        "tokens_per_s_per_gpu": 2000.0,
        "tflops_megatron": 0.2,
        "tflops_built": 0.1,
        "time": 1e9 + number,
        "seconds": Phases(data=0.1, forward_backward=0.3, optimizer=0.06, other=0.04),
    }
    return Train(**(values | changed))


def held_out(number, loss, name=None):
    return Valid(step=number, name=name, tokens=500, loss=loss, seconds=1.0, time=1e9 + number + 0.5)
